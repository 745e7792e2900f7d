#ifndef PIPEWRIGHT_TESTS_FSDP_PARITY_H_
#define PIPEWRIGHT_TESTS_FSDP_PARITY_H_

#include <torch/optim/adam.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comms/mesh.h"
#include "comms/recording_backend.h"
#include "fsdp/fully_shard.h"
#include "tests/training/modules.h"
#include "tests/training/on_ranks.h"

// A sharded module beside a plain copy.

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

  // What happens to the calls of this thread's rank.
  static thread_local comms::Injector injector;

 private:
  comms::World world_;
  comms::Mesh mesh_;
};

// A rank's part of a whole tensor, by torch.chunk.
at::Tensor part_of(const at::Tensor& whole, int rank, int ranks, int64_t dim = 0);

using Placement = std::function<int64_t(const at::Tensor&)>;

// PyTorch's check_sharded_parity: the first difference beyond 1e-9; empty if there is none.
std::string shard_difference(const torch::nn::Module& plain, const torch::nn::Module& sharded,
                             const Rank& self, const Placement& placement = nullptr);

// The plain copy's gradients are averaged by hand; then both step. Equal before and after.
void expect_equal_step(Rank& self, torch::nn::Module& plain, torch::optim::Adam& plain_optimizer,
                       torch::nn::Module& module, torch::optim::Adam& optimizer,
                       const Placement& placement = nullptr);

}  // namespace pipewright::tests

#endif  // PIPEWRIGHT_TESTS_FSDP_PARITY_H_
