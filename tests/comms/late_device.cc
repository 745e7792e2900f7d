#include "tests/comms/late_device.h"

#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/native/TensorFactories.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>

namespace pipewright::tests {
namespace {

using c10::DeviceIndex;
using c10::Stream;

struct LateStream {
  std::vector<std::function<void()>> kernels;
  size_t done = 0;
};

struct LateEvent {
  uint64_t stream;
  size_t position;  // kernels before it
};

std::recursive_mutex mutex;
std::map<uint64_t, LateStream> streams;  // by Stream::hash()
std::atomic<bool> events_are_ignored = false;
std::atomic<int> uses_recorded = 0;
std::atomic<int64_t> next_stream = 1;
thread_local int64_t current_stream = 0;

void run_until(uint64_t stream, size_t position) {
  LateStream& late = streams[stream];
  while (late.done < std::min(position, late.kernels.size())) {
    // The kernel may run other streams.
    const std::function<void()> kernel = std::move(late.kernels[late.done++]);
    kernel();
  }
}

void launch_on(const Stream& stream, std::function<void()> kernel) {
  const std::lock_guard lock(mutex);
  streams[stream.hash()].kernels.push_back(std::move(kernel));
}

struct LateGuard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kLateDevice.type(); }
  c10::Device exchangeDevice(c10::Device) const override { return kLateDevice; }
  c10::Device getDevice() const override { return kLateDevice; }
  void setDevice(c10::Device) const override {}
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  Stream getStream(c10::Device) const override {
    return Stream(Stream::UNSAFE, kLateDevice, current_stream);
  }
  Stream exchangeStream(Stream stream) const override {
    const Stream before = getStream(kLateDevice);
    current_stream = stream.id();
    return before;
  }
  DeviceIndex deviceCount() const noexcept override { return 1; }
  void record(void** event, const Stream& stream, const DeviceIndex,
              const c10::EventFlag) const override {
    const std::lock_guard lock(mutex);
    if (!*event) *event = new LateEvent;
    *static_cast<LateEvent*>(*event) = {stream.hash(), streams[stream.hash()].kernels.size()};
  }
  void block(void* event, const Stream& stream) const override {
    if (events_are_ignored) return;
    const LateEvent awaited = *static_cast<LateEvent*>(event);
    launch_on(stream, [awaited] { run_until(awaited.stream, awaited.position); });
  }
  void destroyEvent(void* event, const DeviceIndex) const noexcept override {
    delete static_cast<LateEvent*>(event);
  }
  void synchronizeStream(const Stream& stream) const override {
    const std::lock_guard lock(mutex);
    run_until(stream.hash(), streams[stream.hash()].kernels.size());
  }
  void recordDataPtrOnStream(const c10::DataPtr&, const Stream&) const override { ++uses_recorded; }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, LateGuard)

struct LateAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    void* memory = std::calloc(1, bytes + 1);
    return {memory, memory, &std::free, kLateDevice};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &std::free; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    std::memcpy(to, from, bytes);
  }
};
LateAllocator allocator;

const c10::DispatchKeySet kKeys(c10::DispatchKey::PrivateUse1);

at::Tensor empty(at::IntArrayRef sizes, std::optional<at::ScalarType> dtype,
                 std::optional<at::Layout>, std::optional<at::Device>, std::optional<bool>,
                 std::optional<at::MemoryFormat> format) {
  return at::detail::empty_generic(sizes, &allocator, kKeys, dtype.value_or(at::kFloat), format);
}

at::Tensor empty_strided(at::IntArrayRef sizes, at::IntArrayRef strides,
                         std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                         std::optional<at::Device>, std::optional<bool>) {
  return at::detail::empty_strided_generic(sizes, strides, &allocator, kKeys,
                                           dtype.value_or(at::kFloat));
}

at::Tensor& copy(at::Tensor& to, const at::Tensor& from, bool) {
  launch([target = on_host(to), source = on_host(from)]() mutable { target.copy_(source); });
  return to;
}

at::Tensor& add(at::Tensor& self, const at::Tensor& other, const at::Scalar& alpha) {
  launch([a = on_host(self), b = on_host(other), alpha]() mutable { a.add_(b, alpha); });
  return self;
}

at::Tensor& divide(at::Tensor& self, const at::Tensor& other) {
  launch([a = on_host(self), other]() mutable { a.div_(other); });
  return self;
}

at::Tensor concatenate(const at::ITensorListRef& list, int64_t dim) {
  std::vector<at::Tensor> parts;
  for (const at::Tensor& part : list) parts.push_back(on_host(part));
  const at::Tensor all =
      at::empty(at::cat(parts, dim).sizes(), at::TensorOptions().device(kLateDevice));
  launch([=, target = on_host(all)]() mutable { target.copy_(at::cat(parts, dim)); });
  return all;
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("empty.memory_format", empty);
  library.impl("empty_strided", empty_strided);
  library.impl("as_strided", at::native::as_strided_tensorimpl);
  library.impl("view",
               static_cast<at::Tensor (*)(const at::Tensor&, at::IntArrayRef)>(at::native::view));
  library.impl("copy_", copy);
  library.impl("add_.Tensor", add);
  library.impl("div_.Tensor", divide);
  library.impl("cat", concatenate);
}

}  // namespace

void use_new_stream() { current_stream = next_stream++; }
void launch(std::function<void()> kernel) {
  launch_on(LateGuard().getStream(kLateDevice), std::move(kernel));
}
void synchronize() { LateGuard().synchronizeStream(LateGuard().getStream(kLateDevice)); }

at::Tensor on_host(const at::Tensor& tensor) {
  if (tensor.is_cpu()) return tensor;
  return at::from_blob(
      tensor.data_ptr(), tensor.sizes(), tensor.strides(), [tensor](void*) {},
      tensor.options().device(at::kCPU));
}

void ignore_events(bool ignore) { events_are_ignored = ignore; }
int num_uses_recorded() { return uses_recorded; }

}  // namespace pipewright::tests
