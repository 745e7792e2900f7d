#ifndef PIPEWRIGHT_TESTS_SUPPORT_TRAINING_PARITY_H_
#define PIPEWRIGHT_TESTS_SUPPORT_TRAINING_PARITY_H_

#include <torch/optim/optimizer.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tests/support/training/modules.h"
#include "tests/support/training/on_ranks.h"

// Trains a wrapped module next to a plain copy, whose gradients are averaged by hand, and compares
// them.

namespace pipewright::tests {

using OptimizerPtr = std::unique_ptr<torch::optim::Optimizer>;
OptimizerPtr adam(torch::nn::Module& module);
OptimizerPtr adam_w(torch::nn::Module& module);

// Averages the gradients of a plain module over the ranks. A gradient that is missing on some ranks
// counts as zero there; one that is missing on all stays undefined.
void average_grads(torch::nn::Module& module, c10d::Backend& group);

// This rank's part of a whole parameter or gradient.
using Part = std::function<at::Tensor(const at::Tensor& whole)>;

// The first difference between `got` and the parts of `expected`, in names, or in parameters and
// gradients beyond 1e-9; empty if there is none. PyTorch's check_sharded_parity.
std::string difference(const torch::nn::Module& expected, const torch::nn::Module& got,
                       const Part& part = nullptr);

// The loss of either module on the data of an iteration.
using Loss = std::function<at::Tensor(const ModulePtr&, int iteration, int rank)>;
// The sum of the output. The module is called through modules::forward, which is a plain call for a
// plain module.
Loss sum_of(std::vector<int64_t> sizes);
Loss sum_of_tokens(std::vector<int64_t> sizes, int64_t vocabulary);

class Parity {
 public:
  // Creates the optimizers, possibly before the module is wrapped: the order must not matter.
  Parity(Rank& self, ModulePtr plain, ModulePtr module, Part part = nullptr,
         OptimizerPtr (*make_optimizer)(torch::nn::Module&) = adam);

  std::string difference() const;
  // Sets gradients to undefined in even iterations, to zeros in odd ones.
  void zero_grad(int iteration);
  // One microbatch: expects equal losses, and runs both backwards.
  void backward(const Loss& loss, int iteration);
  // Expects equal parameters and gradients before and after the optimizer steps.
  void step();

  // Ten iterations of all of these. `each` is called before each forward.
  void train(const Loss& loss, const std::function<void(int iteration)>& each = nullptr);

 private:
  Rank& self_;
  const ModulePtr plain_, module_;
  const Part part_;
  const OptimizerPtr plain_optimizer_, optimizer_;
};

// Alternates steps of make_mlps(32) and steps of its first part alone, which is then the outermost
// module that runs.
void train_whole_and_part(Parity& parity);

}  // namespace pipewright::tests

#endif  // PIPEWRIGHT_TESTS_SUPPORT_TRAINING_PARITY_H_
