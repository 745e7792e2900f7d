#include "pipewright/fsdp/reduction.h"

#include <cmath>

namespace pipewright::fsdp {

Reduction reduction_of(at::ScalarType dtype, int ranks, std::optional<double> factor,
                       bool force_sum) {
  const double divisor = factor.value_or(ranks);
  if (ranks == 1) return {1, ReduceOp::kSum, divisor};
  if (dtype == at::kHalf) {
    // A power of two near the square root.
    double pre = 1;
    while (std::fmod(divisor, pre) == 0 && divisor / pre > pre) pre *= 2;
    return {pre, ReduceOp::kSum, divisor / pre};
  }
  if (!force_sum && divisor == ranks) return {1, ReduceOp::kAverage, 1};
  return {1, ReduceOp::kSum, divisor};
}

}  // namespace pipewright::fsdp
