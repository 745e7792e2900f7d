// Operators that the fallback cannot serve: factories, views, copies, reading a number, and what
// changes a tensor's storage; and the registration of all operators.
#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/native/TensorFactories.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>
#include <torch/library.h>

#include "tests/device/current.h"
#include "tests/device/device.h"
#include "tests/device/fallback.h"
#include "tests/device/host_alias.h"
#include "tests/device/memory.h"
#include "tests/device/scheduler.h"

namespace pipewright::testdevice {
namespace {

using Sizes = at::IntArrayRef;

const c10::DispatchKeySet kKeys(c10::DispatchKey::PrivateUse1);

at::ScalarType dtype_of(std::optional<at::ScalarType> dtype) {
  return dtype.value_or(at::typeMetaToScalarType(at::get_default_dtype()));
}

at::Tensor empty(Sizes sizes, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                 std::optional<at::Device> on, std::optional<bool>,
                 std::optional<at::MemoryFormat> format) {
  const c10::DeviceGuard guard(on.value_or(device(current_device())));
  return at::detail::empty_generic(sizes, &device_allocator(), kKeys, dtype_of(dtype), format);
}

at::Tensor empty_strided(Sizes sizes, Sizes strides, std::optional<at::ScalarType> dtype,
                         std::optional<at::Layout>, std::optional<at::Device> on,
                         std::optional<bool>) {
  const c10::DeviceGuard guard(on.value_or(device(current_device())));
  return at::detail::empty_strided_generic(sizes, strides, &device_allocator(), kKeys,
                                           dtype_of(dtype));
}

// The streams of both devices wait for each other, as in CUDA's copies between devices.
void copy_between_devices(const at::Tensor& to, const at::Tensor& from) {
  const Lock lock(machine().mutex);
  Stream& there = stream_of(current_stream(to.device().index()));
  Stream& here = stream_of(current_stream(from.device().index()));
  wait_event(here, record_event(there));
  HostAliases aliases;
  issue(here, {.name = "copy between devices",
               .kernel = [target = aliases(to), source = aliases(from)] { target.copy_(source); },
               .uses = uses_of({from}, {to})});
  wait_event(there, record_event(here));
}

// Blocks the host like CUDA's copy_: unless both ends are on the device, or the copy is
// non-blocking and the host's end is page-locked.
at::Tensor& copy(at::Tensor& to, const at::Tensor& from, bool non_blocking) {
  const bool to_device = is_on_device(to), from_device = is_on_device(from);
  if (to_device && from_device && to.device() != from.device()) {
    copy_between_devices(to, from);
    return to;
  }
  const bool within = to_device && from_device;
  const auto pinned = [](const at::Tensor& tensor) { return is_pinned(tensor.storage().data()); };
  const bool asynchronous = within || (non_blocking && pinned(to_device ? from : to));
  HostAliases aliases;
  const at::Tensor target = aliases(to);
  // The caller may change pageable memory as soon as this returns.
  const at::Tensor source = from_device || asynchronous ? aliases(from) : from.detach().clone();
  const char* name = within ? "copy" : to_device ? "copy from host" : "copy to host";
  Lock lock(machine().mutex);
  const c10::DeviceIndex on = to_device ? to.device().index() : from.device().index();
  Stream& stream = stream_of(current_stream(on));
  ++machine().kernels[name];
  issue(stream, {.name = name,
                 .kernel = [target, source] { target.copy_(source); },
                 .uses = uses_of({from}, {to})});
  drift(on);
  // CUDA reads pageable memory at once, and returns before the copy is done.
  const bool returns_early = asynchronous || (to_device && non_blocking);
  if (!returns_early) synchronize_host(lock, name, record_event(stream));
  return to;
}

at::Scalar local_scalar(const at::Tensor& self) {
  Lock lock(machine().mutex);
  Stream& stream = stream_of(current_stream(self.device().index()));
  issue(stream, {.name = "item", .uses = uses_of({self}, {})});
  synchronize_host(lock, "item", record_event(stream));
  return on_host(self).item();
}

const at::Tensor& resize(const at::Tensor& self, Sizes sizes, std::optional<at::MemoryFormat>) {
  const size_t bytes = at::detail::computeStorageNbytesContiguous(
      sizes, self.element_size(), static_cast<size_t>(self.storage_offset()));
  if (bytes > self.storage().nbytes()) resize_storage(self.storage(), bytes);
  self.unsafeGetTensorImpl()->set_sizes_contiguous(sizes);
  return self;
}

at::Tensor& set_storage(at::Tensor& self, at::Storage storage, int64_t offset, Sizes sizes,
                        Sizes strides) {
  c10::TensorImpl* impl = self.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(std::move(storage));
  if (strides.empty() && !sizes.empty()) {
    impl->set_storage_offset(offset);
    impl->set_sizes_contiguous(sizes);
  } else {
    impl->set_sizes_and_strides(sizes, strides, offset);
  }
  return self;
}

at::Tensor& set_tensor(at::Tensor& self, const at::Tensor& source) {
  return set_storage(self, source.storage(), source.storage_offset(), source.sizes(),
                     source.strides());
}

// Lets Module::to() and set_data() move a parameter between host and device, as with CUDA.
bool has_compatible_type(const at::Tensor& self, const at::Tensor& from) {
  const auto is_dense = [](const at::Tensor& tensor) {
    return tensor.layout() == at::kStrided && (tensor.is_cpu() || is_on_device(tensor));
  };
  return is_dense(self) && is_dense(from);
}

void record_stream(at::Tensor& self, c10::Stream stream) {
  device_allocator().recordStream(self.storage().data_ptr(), stream);
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&run_on_device>());
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("empty.memory_format", empty);
  library.impl("empty_strided", empty_strided);
  library.impl("as_strided", at::native::as_strided_tensorimpl);
  library.impl("view", static_cast<at::Tensor (*)(const at::Tensor&, Sizes)>(at::native::view));
  library.impl("_reshape_alias", at::native::_reshape_alias);
  library.impl("unfold", at::native::unfold);
  library.impl("view_as_real", at::native::view_as_real);
  library.impl("view_as_complex", at::native::view_as_complex);
  library.impl("copy_", copy);
  library.impl("_local_scalar_dense", local_scalar);
  library.impl("resize_", resize);
  library.impl("set_.source_Storage_storage_offset", set_storage);
  library.impl("set_.source_Tensor", set_tensor);
  library.impl("record_stream", record_stream);
  library.impl("_has_compatible_shallow_copy_type", has_compatible_type);
  // These are composed of others for unknown devices, and would not compute the host's bits.
  for (const char* name :
       {"native_layer_norm", "native_group_norm", "silu_backward", "mish_backward",
        "convolution_overrideable", "convolution_backward_overrideable"})
    library.impl(name, torch::CppFunction::makeFromBoxedFunction<&run_on_device>());
}

}  // namespace
}  // namespace pipewright::testdevice
