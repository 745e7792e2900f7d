#include "tests/fsdp/sharding.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "tests/support/training/modules.h"

namespace pipewright::tests {
namespace {

Groups numbered(const std::string& name, int count) {
  Groups groups;
  for (int i = 0; i < count; ++i) groups.push_back({name + std::to_string(i)});
  return groups;
}

}  // namespace

Groups blocks(int count) { return numbered("block", count); }
Groups mlps(int count) { return numbered("mlp", count); }

Sharding::Sharding(Rank& self, torch::nn::Module& module, const Groups& groups,
                   const fsdp::Options& options, int replicas)
    : world_(self.world->wrapped(
          [log = self.log, injector = self.injector](comms::BackendPtr backend) {
            return comms::record(backend, log, injector);
          })),
      mesh_(world_, {{"dp_replicate", replicas}, {"dp_shard", world_.size() / replicas}}) {
  const std::vector<std::string> dims = {"dp_replicate", "dp_shard"};
  for (const std::vector<std::string>& paths : groups)
    units.push_back(fsdp::fully_shard(modules_at(module, paths), mesh_, dims, options));
  units.push_back(fsdp::fully_shard(module, mesh_, dims, options));
  self.log->clear();
}

at::Tensor part_of(const at::Tensor& whole, int rank, int ranks, int64_t dim) {
  const auto chunks = whole.chunk(ranks, dim);
  if (rank < static_cast<int>(chunks.size())) return chunks[static_cast<size_t>(rank)];
  return whole.narrow(dim, 0, 0);
}

Part shards_of(const Rank& self, const std::function<int64_t(const at::Tensor&)>& placement,
               int replicas) {
  const int ranks = self.world->size() / replicas;
  return [rank = self.rank % ranks, ranks, placement](const at::Tensor& whole) {
    return part_of(whole, rank, ranks, placement ? placement(whole) : 0);
  };
}

std::vector<std::string> events(const fsdp::EventLog& log, const std::vector<fsdp::Event>& of) {
  std::vector<std::string> found;
  for (const fsdp::EventRecord& entry : log) {
    if (std::ranges::find(of, entry.event) == of.end()) continue;
    std::string unit = entry.unit;
    std::erase(unit, '`');
    found.push_back((entry.event == fsdp::Event::kPostBackward ? "post " : "") + unit);
  }
  return found;
}

}  // namespace pipewright::tests
