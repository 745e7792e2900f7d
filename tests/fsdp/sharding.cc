#include "tests/fsdp/sharding.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <utility>

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

std::shared_ptr<fsdp::EventLog> Sharding::record_events() const {
  auto log = std::make_shared<fsdp::EventLog>();
  fsdp::record_events(*units.back(), log);
  return log;
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

std::vector<AccumulationRow> accumulation_rows() {
  std::vector<AccumulationRow> rows;
  for (const auto& [units, reductions] :
       {std::pair{Accumulates::kAll, 4}, std::pair{Accumulates::kSomeMlps, 8},
        std::pair{Accumulates::kRootOnly, 10}}) {
    for (const bool offloads : {false, true}) {
      rows.push_back({units, true, true, offloads, reductions, 24});
      rows.push_back({units, 2, true, offloads, reductions, 24});
    }
    rows.push_back({units, false, true, false, reductions, 12});
    if (units != Accumulates::kSomeMlps)
      rows.push_back({units, false, false, false, reductions, reductions});
  }
  return rows;
}

void expect_accumulation(Rank& self, const AccumulationRow& row, int replicas,
                         bool reduce_scatter_only) {
  constexpr int kMlps = 3, kMicrobatches = 3;
  const ModulePtr module = make_mlps(32, kMlps, 42);
  Parity parity(self, make_mlps(32, kMlps, 42), module, shards_of(self, nullptr, replicas));
  fsdp::Options options{.reshard_after_forward = row.reshard_after_forward};
  if (row.offloads) options.offload_policy.emplace();
  Sharding sharding(self, *module, mlps(kMlps), options, replicas);
  for (int iteration = 0; iteration < 5; ++iteration) {
    parity.zero_grad(iteration);
    self.log->clear();
    for (int microbatch = 0; microbatch < kMicrobatches; ++microbatch) {
      const bool last = microbatch == kMicrobatches - 1;
      const bool recurse = row.units != Accumulates::kRootOnly;
      const auto set = [&](fsdp::Sharded& unit) {
        if (reduce_scatter_only)
          unit.set_requires_all_reduce(last, recurse);
        else
          unit.set_requires_gradient_sync(last, recurse);
        if (!row.reshard_after_backward) unit.set_reshard_after_backward(last, recurse);
      };
      if (row.units == Accumulates::kSomeMlps) {
        set(*sharding.units[0]);
        set(*sharding.units[1]);
      } else {
        set(sharding.root());
      }
      parity.backward(sum_of({2, 32}), 10 * iteration + microbatch);
    }
    parity.step();
    const int scattered = reduce_scatter_only ? kMicrobatches * (kMlps + 1) : row.reductions;
    EXPECT_EQ(self.log->count(kReduce), scattered) << iteration;
    EXPECT_EQ(self.log->count("allreduce"), replicas > 1 ? row.reductions : 0) << iteration;
    EXPECT_EQ(self.log->count(kGather), row.gathers) << iteration;
  }
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
