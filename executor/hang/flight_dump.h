#ifndef PIPEWRIGHT_EXECUTOR_HANG_FLIGHT_DUMP_H_
#define PIPEWRIGHT_EXECUTOR_HANG_FLIGHT_DUMP_H_

#include <cstdint>
#include <string>
#include <vector>

#include "pipewright/comms/collective_log.h"

// Dumps in the format of PyTorch's flight recorder, version 2.10, which this reads:
//
//   python -m torch.distributed.flight_recorder.fr_trace FOLDER -p PREFIX
//
// LibTorch records nothing but NCCL's operations and, over Gloo, collectives. A pipeline knows its
// SENDs and RECVs from its program, so that it needs no recording. Torch-free.

namespace pipewright::executor {

struct FlightGroup {
  std::string name;  // the same on all members
  std::string description;
  std::vector<int> members;  // world ranks
};

// An operation that this rank has called.
struct FlightEntry {
  size_t group = 0;    // index into FlightDump::groups
  std::string op;      // "all_reduce"; "send 0->1", "recv 1<-0" with ranks of the group, ascending
  int64_t number = 0;  // of the operation in its group; equal numbers meet
  bool is_p2p = false;
  std::vector<int64_t> input_size, output_size;
  std::string dtype;
  bool is_done = false;
  int64_t unix_ns = 0;
  std::string place;  // "action 1RECV_F3"
  std::string file;   // "1F1B, rank 1"
  int line = 0;       // the action's step
};

struct FlightDump {
  std::vector<FlightGroup> groups;
  std::vector<FlightEntry> entries;
};

// The dump as a Python pickle.
std::string to_pickle(const FlightDump& dump);

// A collective that a member of `group` has called, under PyTorch's name and with the sizes that
// its flight recorder would have written: fr_trace refuses names that it does not know, and takes
// sizes that do not fit for errors. Without a group, a time and a place.
FlightEntry to_flight_entry(const comms::Collective& collective, const comms::GroupState& group);

}  // namespace pipewright::executor

#endif  // PIPEWRIGHT_EXECUTOR_HANG_FLIGHT_DUMP_H_
