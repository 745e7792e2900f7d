#include "pipewright/modules/meta.h"

#include <ATen/ops/empty.h>
#include <c10/core/InferenceMode.h>

#include "pipewright/modules/contents.h"

namespace pipewright::modules {
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
