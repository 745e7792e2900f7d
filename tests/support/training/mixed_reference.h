#ifndef PIPEWRIGHT_TESTS_SUPPORT_TRAINING_MIXED_REFERENCE_H_
#define PIPEWRIGHT_TESTS_SUPPORT_TRAINING_MIXED_REFERENCE_H_

#include <vector>

#include "pipewright/modules/mixed_precision.h"
#include "tests/support/training/modules.h"
#include "tests/support/training/on_ranks.h"

namespace pipewright::tests {

// What mixed precision means, by hand: a copy of a plain module in param_dtype computes, gradients
// are summed over microbatches and ranks in reduce_dtype, and the plain module is trained. On ranks
// that are threads the results are those of a wrapper bit by bit.
class MixedReference {
 public:
  // `low` has the layers of `plain`; it becomes the copy.
  MixedReference(Rank& self, ModulePtr plain, ModulePtr low,
                 const modules::MixedPrecisionPolicy& policy);
  at::ScalarType compute_dtype() const { return compute_; }

  void begin_step();
  // One microbatch: a backward of its loss, the sum of the output, times `scale`. Returns the loss.
  at::Tensor backward(const at::Tensor& input, double scale = 1);
  // Sets the gradients of the plain module. Collective.
  void reduce();

 private:
  Rank& self_;
  const ModulePtr plain_, low_;
  const at::ScalarType compute_, reduce_;
  std::vector<at::Tensor> sums_;  // of the microbatches, by parameter
};

}  // namespace pipewright::tests

#endif  // PIPEWRIGHT_TESTS_SUPPORT_TRAINING_MIXED_REFERENCE_H_
