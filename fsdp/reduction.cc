// Divides exactly once. PyTorch 2.11 divides twice for one rank with an explicit factor, because
// two places decide on the division. Invariant, tested over all dtypes, sizes and factors:
// divisor(ranks) is the factor, or the number of ranks without one. Constant time, except
// log2(divisor) for fp16.
#include "pipewright/fsdp/reduction.h"

#include <cmath>

namespace pipewright::fsdp {

Reduction reduction_of(at::ScalarType dtype, int ranks, std::optional<double> factor,
                       bool force_sum) {
  const double divisor = factor.value_or(ranks);
  if (ranks == 1) return {1, ReduceOp::kSum, divisor};
  if (dtype == at::kHalf) {
    // A power of two near the square root: PyTorch's rule.
    double pre = 1;
    while (std::fmod(divisor, pre) == 0 && divisor / pre > pre) pre *= 2;
    return {pre, ReduceOp::kSum, divisor / pre};
  }
  if (!force_sum && divisor == ranks) return {1, ReduceOp::kAverage, 1};
  return {1, ReduceOp::kSum, divisor};
}

}  // namespace pipewright::fsdp
