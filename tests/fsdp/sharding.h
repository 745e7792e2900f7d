#ifndef PIPEWRIGHT_TESTS_FSDP_SHARDING_H_
#define PIPEWRIGHT_TESTS_FSDP_SHARDING_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "pipewright/comms/mesh.h"
#include "pipewright/fsdp/event_log.h"
#include "pipewright/fsdp/fully_shard.h"
#include "tests/support/training/on_ranks.h"
#include "tests/support/training/parity.h"

// Modules wrapped by fully_shard, and the shards that each rank stores.

namespace pipewright::tests {

// The collectives of an all-gather and of a reduction: one call per group.
inline constexpr const char* kGather = "allgather_into_tensor_coalesced";
inline constexpr const char* kReduce = "reduce_scatter_tensor_coalesced";

// Each list holds the paths of modules that are sharded by one call, before the whole model.
using Groups = std::vector<std::vector<std::string>>;
Groups blocks(int count);  // "block0", ...
Groups mlps(int count);    // "mlp0", ...

// Shards a module over a mesh of all ranks, or with `replicas` over all ranks divided by it;
// collectives are recorded in the rank's log.
class Sharding {
 public:
  Sharding(Rank& self, torch::nn::Module& module, const Groups& groups,
           const fsdp::Options& options, int replicas = 1);

  std::vector<std::shared_ptr<fsdp::Sharded>> units;
  fsdp::Sharded& root() { return *units.back(); }
  // From now on.
  std::shared_ptr<fsdp::EventLog> record_events() const;

 private:
  comms::World world_;
  comms::Mesh mesh_;
};

// A rank's shard of a full tensor, by torch.chunk.
at::Tensor part_of(const at::Tensor& whole, int rank, int ranks, int64_t dim = 0);

// Takes this rank's shards; `placement` returns the dimension to shard along, 0 by default.
Part shards_of(const Rank& self,
               const std::function<int64_t(const at::Tensor&)>& placement = nullptr,
               int replicas = 1);

// A row of PyTorch's test_gradient_accumulation: which units accumulate, and how many reductions
// and gathers three microbatches post.
enum class Accumulates { kAll, kSomeMlps, kRootOnly };
struct AccumulationRow {
  Accumulates units;
  fsdp::ReshardAfterForward reshard_after_forward;
  bool reshard_after_backward, offloads;
  int reductions, gathers;
};
std::vector<AccumulationRow> accumulation_rows();
// With replicas, as many all-reduces. `reduce_scatter_only`: microbatches are reduced, and not
// all-reduced.
void expect_accumulation(Rank& self, const AccumulationRow& row, int replicas,
                         bool reduce_scatter_only);

// The units of the events `of` in a log, in order: "block0", or "post block0" for kPostBackward.
std::vector<std::string> events(const fsdp::EventLog& log, const std::vector<fsdp::Event>& of);

}  // namespace pipewright::tests

#endif  // PIPEWRIGHT_TESTS_FSDP_SHARDING_H_
