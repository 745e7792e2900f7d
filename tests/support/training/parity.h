#ifndef PIPEWRIGHT_TESTS_SUPPORT_TRAINING_PARITY_H_
#define PIPEWRIGHT_TESTS_SUPPORT_TRAINING_PARITY_H_

#include <torch/optim/optimizer.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tests/support/training/modules.h"
#include "tests/support/training/on_ranks.h"

// The module that is tested beside a plain copy, whose gradients are averaged by hand.

namespace pipewright::tests {

using OptimizerPtr = std::unique_ptr<torch::optim::Optimizer>;
OptimizerPtr adam(torch::nn::Module& module);
OptimizerPtr adam_w(torch::nn::Module& module);

// Averages the gradients of a plain module over the ranks: one that some ranks lack is zero there,
// one that all lack stays undefined.
void average_grads(torch::nn::Module& module, c10d::Backend& group);

// What a rank holds of a whole parameter, or of its gradient.
using Part = std::function<at::Tensor(const at::Tensor& whole)>;

// PyTorch's check_sharded_parity: the first difference between `got` and the parts of `want`, in
// names, parameters and gradients beyond 1e-9; empty if there is none.
std::string difference(const torch::nn::Module& want, const torch::nn::Module& got,
                       const Part& part = nullptr);

// What is done with either of them, for an iteration's data.
using Loss = std::function<at::Tensor(const ModulePtr&, int iteration, int rank)>;
// Of the sum of the output, called as fsdp::forward does, which a plain module does not notice.
Loss sum_of(std::vector<int64_t> sizes);
Loss sum_of_tokens(std::vector<int64_t> sizes, int64_t vocabulary);

class Parity {
 public:
  // Makes the optimizers: before the module is wrapped, which must not matter.
  Parity(Rank& self, ModulePtr plain, ModulePtr module, Part part = nullptr,
         OptimizerPtr (*make_optimizer)(torch::nn::Module&) = adam);

  std::string difference() const;
  // To nothing or to zeros, by turns.
  void zero_grad(int iteration);
  // Expects equal losses; one microbatch.
  void backward(const Loss& loss, int iteration);
  // Expects equal parameters and gradients before and after both step.
  void step();

  // Ten times all of these; `each` is for the wrapped module, before its forward.
  void train(const Loss& loss, const std::function<void(int iteration)>& each = nullptr);

 private:
  Rank& self_;
  const ModulePtr plain_, module_;
  const Part part_;
  const OptimizerPtr plain_optimizer_, optimizer_;
};

// Steps of make_mlps(32) by turns with steps of its first part alone, which then is the outermost
// one that runs.
void train_whole_and_part(Parity& parity);

}  // namespace pipewright::tests

#endif  // PIPEWRIGHT_TESTS_SUPPORT_TRAINING_PARITY_H_
