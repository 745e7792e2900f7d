#ifndef PIPEWRIGHT_FSDP_REDUCTION_H_
#define PIPEWRIGHT_FSDP_REDUCTION_H_

#include <c10/core/ScalarType.h>

#include <optional>

namespace pipewright::fsdp {

enum class ReduceOp { kSum, kAverage };

// How gradients become their mean: divided by `pre`, reduced, divided by `post`. With kAverage the
// backend divides by the number of ranks.
struct Reduction {
  double pre = 1;
  ReduceOp op = ReduceOp::kSum;
  double post = 1;

  // What a sum over `ranks` ranks is divided by in all.
  double divisor(int ranks) const { return pre * post * (op == ReduceOp::kAverage ? ranks : 1); }
};

// The one place that decides. `factor`: what to divide by instead of the number of ranks.
// `force_sum`: for backends whose averages are not to be used. In fp16 one half of the division
// comes before the sum and one behind it, so that neither overflows nor underflows.
Reduction reduction_of(at::ScalarType dtype, int ranks, std::optional<double> factor,
                       bool force_sum);

}  // namespace pipewright::fsdp

#endif  // PIPEWRIGHT_FSDP_REDUCTION_H_
