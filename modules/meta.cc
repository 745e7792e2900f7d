#include "pipewright/modules/meta.h"

#include <ATen/ops/empty.h>
#include <c10/core/InferenceMode.h>

#include "pipewright/modules/part_guard.h"

namespace pipewright::modules {

at::Tensor contents_of(const at::Tensor& registered) {
  return at::Tensor(registered.unsafeGetTensorImpl()->shallow_copy_and_detach(
      c10::VariableVersion(0), /*allow_tensor_metadata_change=*/true));
}

void set_contents(const at::Tensor& registered, const at::Tensor& contents) {
  registered.unsafeGetTensorImpl()->shallow_copy_from(contents.getIntrusivePtr());
}

bool has_contents(const at::Tensor& registered, const at::Tensor& contents) {
  return registered.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl() ==
             contents.storage().unsafeGetStorageImpl() &&
         registered.storage_offset() == contents.storage_offset() &&
         registered.sizes() == contents.sizes() &&
         registered.scalar_type() == contents.scalar_type() &&
         is_guarded(registered) == is_guarded(contents);
}

std::string describe_contents(const at::Tensor& tensor) {
  return c10::str(tensor.scalar_type(), " ", tensor.sizes(), " on ", tensor.device());
}

namespace {

template <typename Chosen>
void allocate(torch::nn::Module& module, at::Device device, const Chosen& chosen) {
  const c10::InferenceMode no_inference(false);  // set_contents() requires it
  const auto allocate_all = [&](const auto& tensors) {
    for (const at::Tensor& tensor : tensors) {
      if (!tensor.defined() || !chosen(tensor)) continue;
      set_contents(tensor,
                   at::empty(tensor.sizes(), at::TensorOptions(tensor.dtype()).device(device)));
    }
  };
  allocate_all(module.parameters());
  allocate_all(module.buffers());
}

}  // namespace

void to_meta(torch::nn::Module& module) {
  allocate(module, at::kMeta, [](const at::Tensor&) { return true; });
}

void to_empty(torch::nn::Module& module, at::Device device) {
  allocate(module, device, [](const at::Tensor& tensor) { return tensor.is_meta(); });
}

}  // namespace pipewright::modules
