#ifndef PIPEWRIGHT_MODULES_REDUCTION_H_
#define PIPEWRIGHT_MODULES_REDUCTION_H_

#include <c10/core/ScalarType.h>

#include <optional>

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

}  // namespace pipewright::modules

#endif  // PIPEWRIGHT_MODULES_REDUCTION_H_
