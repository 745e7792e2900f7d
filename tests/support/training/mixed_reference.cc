#include "tests/support/training/mixed_reference.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <utility>

namespace pipewright::tests {

MixedReference::MixedReference(Rank& self, ModulePtr plain, ModulePtr low,
                               const modules::MixedPrecisionPolicy& policy)
    : self_(self),
      plain_(std::move(plain)),
      low_(std::move(low)),
      compute_(policy.param_dtype.value_or(plain_->parameters()[0].scalar_type())),
      reduce_(policy.reduce_dtype.value_or(plain_->parameters()[0].scalar_type())) {
  low_->to(compute_);
}

void MixedReference::begin_step() {
  const c10::NoGradGuard no_grad;
  const auto from = plain_->parameters(), to = low_->parameters();
  for (size_t i = 0; i < from.size(); ++i) to[i].copy_(from[i]);
  sums_.assign(to.size(), {});
}

at::Tensor MixedReference::backward(const at::Tensor& input, double scale) {
  low_->zero_grad();
  at::Tensor loss = low_->forward(input.to(compute_)).sum();
  (loss * scale).backward();
  for (size_t i = 0; i < sums_.size(); ++i) {
    const at::Tensor& grad = low_->parameters()[i].grad();
    sums_[i] = sums_[i].defined() ? sums_[i].add_(grad)
                                  : grad.to(reduce_, /*non_blocking=*/false, /*copy=*/true);
  }
  return loss;
}

void MixedReference::reduce() {
  const int ranks = self_.world->size();
  // In fp16 about the square root of the divisor is applied before the sum: 2 for 2 and 4 ranks.
  const bool average = reduce_ != at::kHalf;
  const int pre = average || ranks == 1 ? 1 : 2;
  for (size_t i = 0; i < sums_.size(); ++i) {
    std::vector<at::Tensor> sum = {sums_[i].div_(pre)};
    c10d::AllreduceOptions options;
    options.reduceOp = average ? c10d::ReduceOp::AVG : c10d::ReduceOp::SUM;
    self_.by_hand->allreduce(sum, options)->wait();
    if (!average) sum[0].div_(ranks / pre);
    const at::Tensor weight = plain_->parameters()[i];
    weight.mutable_grad() = sum[0].to(weight.scalar_type());
  }
}

}  // namespace pipewright::tests
