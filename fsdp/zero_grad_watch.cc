// A .grad is the same if it has the same memory: zero_grad() detaches it, which makes another
// tensor that shares memory and version. The version tells whether anybody has written to it; only
// then are its values read, for which the host waits.
#include "pipewright/fsdp/zero_grad_watch.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <utility>

namespace pipewright::fsdp {
namespace {

c10::StorageImpl* storage_of(const at::Tensor& tensor) {
  return tensor.storage().unsafeGetStorageImpl();
}

bool is_cleared(const at::Tensor& grad) {
  const at::Tensor real = grad.is_complex() ? at::view_as_real(grad) : grad;
  return !at::logical_or(real != 0, real.signbit()).any().item<bool>();
}

}  // namespace

at::Tensor ZeroGradWatch::make_mark(int64_t numel, const at::TensorOptions& options) {
  return at::full({numel}, -0.0, options);
}

void ZeroGradWatch::begin(const at::Tensor& registered, const at::Tensor& mark) {
  at::Tensor& grad = registered.mutable_grad();
  is_mark_ = !grad.defined();
  if (is_mark_) grad = mark;
  storage_ = WeakStorage(c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(storage_of(grad)));
  version_ = grad._version();
}

ZeroGradWatch::Found ZeroGradWatch::end(const at::Tensor& registered) {
  if (!storage_) return Found::kUntouched;
  const c10::NoGradGuard no_grad;
  const WeakStorage storage = *std::exchange(storage_, std::nullopt);
  at::Tensor& grad = registered.mutable_grad();
  if (!grad.defined() || storage_of(grad) != storage._unsafe_get_target()) return Found::kCleared;
  if (grad._version() != version_) return is_cleared(grad) ? Found::kCleared : Found::kWritten;
  if (is_mark_) grad.reset();
  return Found::kUntouched;
}

}  // namespace pipewright::fsdp
