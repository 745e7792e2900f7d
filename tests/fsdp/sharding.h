#ifndef PIPEWRIGHT_TESTS_FSDP_SHARDING_H_
#define PIPEWRIGHT_TESTS_FSDP_SHARDING_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "pipewright/comms/mesh.h"
#include "pipewright/fsdp/fully_shard.h"
#include "tests/support/training/on_ranks.h"
#include "tests/support/training/parity.h"

// Modules wrapped by fully_shard, and what each rank holds of them then.

namespace pipewright::tests {

// The calls of a gather and of a reduction, one for each group.
inline constexpr const char* kGather = "allgather_into_tensor_coalesced";
inline constexpr const char* kReduce = "reduce_scatter_tensor_coalesced";

// Paths of modules that are sharded by one call each, before the whole.
using Groups = std::vector<std::vector<std::string>>;
Groups blocks(int count);  // "block0", ...
Groups mlps(int count);    // "mlp0", ...

// Over a mesh of all ranks, whose calls are written to the rank's log.
class Sharding {
 public:
  Sharding(Rank& self, torch::nn::Module& module, const Groups& groups,
           const fsdp::Options& options);

  std::vector<std::shared_ptr<fsdp::Sharded>> units;
  fsdp::Sharded& root() { return *units.back(); }

 private:
  comms::World world_;
  comms::Mesh mesh_;
};

// A rank's part of a whole tensor, by torch.chunk.
at::Tensor part_of(const at::Tensor& whole, int rank, int ranks, int64_t dim = 0);

// Those of this rank; `placement` is the dimension to shard along, 0 by default.
Part shards_of(const Rank& self,
               const std::function<int64_t(const at::Tensor&)>& placement = nullptr);

// The units of some events of a trace, in their order: "block0" or, behind its backward, "post
// block0".
std::vector<std::string> events(const fsdp::Trace& trace, const std::vector<fsdp::Event>& of);

}  // namespace pipewright::tests

#endif  // PIPEWRIGHT_TESTS_FSDP_SHARDING_H_
