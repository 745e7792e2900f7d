#include "pipewright/ddp/replicate.h"

#include <ATen/ATen.h>

#include <optional>
#include <utility>

#include "pipewright/comms/group.h"
#include "pipewright/ddp/replicated_unit.h"
#include "pipewright/modules/reduction.h"

namespace pipewright::ddp {

namespace {

CommHook compress_hook(at::ScalarType dtype) {
  return [dtype](const at::Tensor& bucket, const comms::BackendPtr& group) {
    std::vector<at::Tensor> small = {bucket.to(dtype).div_(group->getSize())};
    const auto work = group->allreduce(small);
    return [bucket, small = small[0], group, work] {
      comms::wait(*group, *work);
      bucket.copy_(small);
    };
  };
}

}  // namespace

CommHook all_reduce_hook() {
  return [](const at::Tensor& bucket, const comms::BackendPtr& group) {
    const modules::Reduction reduction = modules::reduction_of(
        bucket.scalar_type(), 1, group->getSize(), std::nullopt, /*force_sum=*/false);
    c10d::AllreduceOptions options;
    options.reduceOp =
        reduction.across == modules::ReduceOp::kAverage ? c10d::ReduceOp::AVG : c10d::ReduceOp::SUM;
    if (reduction.pre != 1) bucket.div_(reduction.pre);
    std::vector<at::Tensor> tensors = {bucket};
    const auto work = group->allreduce(tensors, options);
    return [bucket, group, work, post = reduction.post] {
      comms::wait(*group, *work);
      if (post != 1) bucket.div_(post);
    };
  };
}

CommHook fp16_compress_hook() { return compress_hook(at::kHalf); }
CommHook bf16_compress_hook() { return compress_hook(at::kBFloat16); }

std::shared_ptr<Replicated> replicate(const std::vector<torch::nn::Module*>& modules,
                                      comms::BackendPtr group, Options options) {
  const auto unit = std::make_shared<ReplicatedUnit>(modules, std::move(group), std::move(options));
  unit->begin(modules);
  return unit;
}

}  // namespace pipewright::ddp
