#ifndef PIPEWRIGHT_TP_SEQUENCE_PARALLEL_H_
#define PIPEWRIGHT_TP_SEQUENCE_PARALLEL_H_

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <memory>
#include <optional>

#include "pipewright/autograd/split_backward.h"
#include "pipewright/comms/world.h"
#include "pipewright/tp/split_module.h"

// What style sequence_parallel() does with a module: its weights are copies, but each rank calls it
// on its part of the sequence, so the gradient of a weight is the sum over ranks, and each rank
// draws random numbers of its own.

namespace pipewright::tp {

// A module of any type.
std::shared_ptr<SplitModule> sequence_parallel_module(torch::nn::Module& module,
                                                      const comms::BackendPtr& group);

// Sums the gradient of a leaf over the ranks of `group`, in each backward before it is accumulated,
// as long as this object exists: fully_shard and replicate then reduce the sum. Also while the leaf
// is frozen and unfrozen. A split backward (autograd/split_backward.h) sums and accumulates in I.
class GradientSum {
 public:
  GradientSum(const at::Tensor& leaf, comms::BackendPtr group);
  ~GradientSum();
  GradientSum(const GradientSum&) = delete;
  GradientSum& operator=(const GradientSum&) = delete;

 private:
  const at::Tensor leaf_;
  unsigned hook_;
  std::optional<autograd::AccumulatesInI> in_input_half_;
};

}  // namespace pipewright::tp

#endif  // PIPEWRIGHT_TP_SEQUENCE_PARALLEL_H_
