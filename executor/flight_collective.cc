#include "pipewright/executor/flight_collective.h"

#include <map>

namespace pipewright::executor {
namespace {

// Where a collective takes one tensor per member. A log has the size of the first one.
enum class Lists { kNone, kInputs, kOutputs, kBoth };

struct Kind {
  const char* name;  // PyTorch's
  Lists lists = Lists::kNone;
};

// By c10d::Backend's method; those that are missing have PyTorch's name.
const std::map<std::string, Kind>& kinds() {
  static const std::map<std::string, Kind> kinds = {
      {"allreduce", {"all_reduce"}},
      {"allreduce_sparse", {"all_reduce"}},
      {"allgather", {"all_gather", Lists::kOutputs}},
      {"allgather_coalesced", {"all_gather_into_tensor_coalesced", Lists::kOutputs}},
      {"_allgather_base", {"_all_gather_base"}},
      {"allgather_into_tensor_coalesced", {"all_gather_into_tensor_coalesced"}},
      {"reduce_scatter", {"reduce_scatter", Lists::kInputs}},
      {"alltoall", {"all_to_all", Lists::kBoth}},
      {"alltoall_base", {"all_to_all"}},
      {"barrier", {"all_reduce_barrier"}}};
  return kinds;
}

}  // namespace

FlightEntry to_flight_entry(const comms::Collective& collective, const comms::GroupState& group) {
  FlightEntry entry;
  const auto found = kinds().find(collective.op);
  const Kind kind = found == kinds().end() ? Kind{collective.op.c_str()} : found->second;
  entry.op = kind.name;
  entry.number = collective.number;
  entry.input_size = collective.input;
  entry.output_size = collective.output;
  const auto members = static_cast<int64_t>(group.members.size());
  switch (kind.lists) {
    case Lists::kNone:
      break;
    case Lists::kInputs:
      entry.input_size.insert(entry.input_size.begin(), members);
      break;
    case Lists::kOutputs:
      entry.output_size.insert(entry.output_size.begin(), members);
      break;
    case Lists::kBoth:  // the sum over all members must be the same for both
      entry.output_size = entry.input_size;
      break;
  }
  entry.dtype = collective.dtype;
  entry.is_done = collective.is_done;
  return entry;
}

}  // namespace pipewright::executor
