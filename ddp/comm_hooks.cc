#include "pipewright/ddp/comm_hooks.h"

#include <ATen/ATen.h>

#include "pipewright/comms/group.h"

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
    c10d::AllreduceOptions options;
    options.reduceOp = c10d::ReduceOp::AVG;
    std::vector<at::Tensor> tensors = {bucket};
    const auto work = group->allreduce(tensors, options);
    return [group, work] { comms::wait(*group, *work); };
  };
}

CommHook fp16_compress_hook() { return compress_hook(at::kHalf); }
CommHook bf16_compress_hook() { return compress_hook(at::kBFloat16); }

}  // namespace pipewright::ddp
