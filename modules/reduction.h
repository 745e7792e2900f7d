#ifndef PIPEWRIGHT_MODULES_REDUCTION_H_
#define PIPEWRIGHT_MODULES_REDUCTION_H_

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/embedding.h>

#include <optional>

#include "pipewright/modules/tensors.h"

namespace pipewright::modules {

enum class ReduceOp { kSum, kAverage };

// How gradients are averaged: divided by `pre`, reduced over the ranks that share the shards (`op`)
// and over their replicas (`across`), divided by `post`. With kAverage the backend divides by the
// number of ranks or replicas.
struct Reduction {
  double pre = 1;
  ReduceOp op = ReduceOp::kSum;
  ReduceOp across = ReduceOp::kSum;
  double post = 1;

  // The total divisor of a sum over `ranks` ranks and `replicas` replicas.
  double divisor(int ranks, int replicas = 1) const {
    return pre * post * (op == ReduceOp::kAverage ? ranks : 1) *
           (across == ReduceOp::kAverage ? replicas : 1);
  }
};

// The only place that decides how gradients are averaged. `factor` replaces the number of ranks
// times replicas as the divisor. `force_sum` is for backends without a usable average. In fp16
// about the square root of the divisor is applied before the sum and the rest after it, so that the
// sum neither overflows nor underflows (as PyTorch does).
Reduction reduction_of(at::ScalarType dtype, int ranks, int replicas, std::optional<double> factor,
                       bool force_sum);

// Whether backward computes a sparse gradient for the weight of `module`: it is an Embedding or an
// EmbeddingBag with sparse(true). Wrappers reduce dense gradients, and say so when they are called.
inline bool has_sparse_gradient(const torch::nn::Module& module) {
  if (const auto* embedding = dynamic_cast<const torch::nn::EmbeddingImpl*>(&module))
    return embedding->options.sparse();
  const auto* bag = dynamic_cast<const torch::nn::EmbeddingBagImpl*>(&module);
  return bag && bag->options.sparse();
}

// Casts the floating-point tensors among `tensors`; a no-op without a dtype.
inline Tensors cast_floating(Tensors tensors, std::optional<at::ScalarType> dtype) {
  if (!dtype) return tensors;
  for (at::Tensor& tensor : tensors) {
    if (tensor.defined() && tensor.is_floating_point()) tensor = tensor.to(*dtype);
  }
  return tensors;
}

// Tells whether the current backward reduces the gradients of a unit or only accumulates them. A
// trainer decides with set_requires_gradient_sync and no_sync scopes; while an executor drives the
// unit, the program decides, and the trainer's settings are ignored.
class GradientSync {
 public:
  // By the trainer.
  void set_required(bool required) { required_ = required; }
  // 1 when a no_sync scope opens, -1 when it closes.
  void hold(int change) { held_ += change; }
  bool is_required() const { return required_ && held_ == 0; }

  // By the executor: `last` is true from the last backward before a REDUCE_GRAD until it has run.
  void set_driven(bool driven) {
    driven_ = driven;
    last_ = false;
  }
  void set_last_backward(bool last) { last_ = last; }
  bool is_driven() const { return driven_; }

  bool reduces() const { return driven_ ? last_ : is_required(); }

 private:
  bool required_ = true;
  int held_ = 0;
  bool driven_ = false;
  bool last_ = false;
};

}  // namespace pipewright::modules

#endif  // PIPEWRIGHT_MODULES_REDUCTION_H_
