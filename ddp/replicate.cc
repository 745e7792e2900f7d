#include "pipewright/ddp/replicate.h"

#include <ATen/ATen.h>

#include <optional>
#include <utility>

#include "pipewright/ddp/replicated_unit.h"
#include "pipewright/modules/reduction.h"

namespace pipewright::ddp {

namespace {

CommHook compress_hook(at::ScalarType dtype) {
  return [dtype](const at::Tensor& bucket, const comms::BackendPtr& group) {
    std::vector<at::Tensor> small = {bucket.to(dtype).div_(group->getSize())};
    const auto work = group->allreduce(small);
    return [bucket, small = small[0], group, work] {
      work->wait();
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
      work->wait();
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
  return std::make_shared<Replicated>(unit);
}

Replicated::Replicated(std::shared_ptr<ReplicatedUnit> unit) : unit_(std::move(unit)) {}

void Replicated::set_requires_gradient_sync(bool sync, bool recurse) {
  unit_->for_each_if(recurse,
                     [=](ReplicatedUnit& unit) { unit.gradient_sync().set_required(sync); });
}
bool Replicated::requires_gradient_sync() const { return unit_->gradient_sync().is_required(); }
void Replicated::unshard() { unit_->unshard(); }
void Replicated::reshard() { unit_->reshard(); }
std::shared_ptr<modules::DataParallel> Replicated::data_parallel() {
  return unit_->data_parallel();
}
size_t Replicated::bucket_bytes() const { return unit_->grads().bytes(); }
std::vector<std::vector<std::string>> Replicated::buckets() const {
  return unit_->grads().names_by_bucket();
}

NoSync::NoSync(Replicated& replicated) : unit_(*replicated.unit_) {
  unit_.for_each([](ReplicatedUnit& unit) { unit.gradient_sync().hold(1); });
}
NoSync::~NoSync() {
  unit_.for_each([](ReplicatedUnit& unit) { unit.gradient_sync().hold(-1); });
}

}  // namespace pipewright::ddp
