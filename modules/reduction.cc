// Divides exactly once. PyTorch 2.11 divides twice for one rank with an explicit factor, because
// two places decide on the division. Invariant, tested over all dtypes, sizes and factors:
// divisor(ranks, replicas) is the factor, or the number of ranks times replicas without one.
// Constant time, except log2(divisor) for fp16.
#include "pipewright/modules/reduction.h"

#include <cmath>

namespace pipewright::modules {

Reduction reduction_of(at::ScalarType dtype, int ranks, int replicas, std::optional<double> factor,
                       bool force_sum) {
  const double all = static_cast<double>(ranks) * replicas;
  const double divisor = factor.value_or(all);
  if (all == 1) return {.post = divisor};
  if (dtype == at::kHalf) {
    // A power of two near the square root: PyTorch's rule.
    double pre = 1;
    while (std::fmod(divisor, pre) == 0 && divisor / pre > pre) pre *= 2;
    return {.pre = pre, .post = divisor / pre};
  }
  const auto op_for = [](int size) { return size > 1 ? ReduceOp::kAverage : ReduceOp::kSum; };
  if (!force_sum && divisor == all) return {.op = op_for(ranks), .across = op_for(replicas)};
  if (!force_sum && divisor == ranks) return {.op = op_for(ranks)};
  return {.post = divisor};
}

}  // namespace pipewright::modules
