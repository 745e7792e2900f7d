#ifndef PIPEWRIGHT_MODULES_META_H_
#define PIPEWRIGHT_MODULES_META_H_

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <string>

// The contents of a registered tensor, that is, of one that a module and its optimizer refer to:
// memory, sizes, dtype, device and dispatch keys. Wrappers exchange them, so that a forward and its
// backward see the full parameter, or a copy in another dtype, and an optimizer sees what this rank
// stores. They do it below autograd, which keeps the tensor's gradient accumulator with its hooks,
// its .grad, requires_grad and version. (set_data() with another dtype drops the accumulator.)
//
// For one thread at a time per tensor.

namespace pipewright::modules {

// A tensor in the same memory, which keeps these contents when those of `registered` are exchanged.
at::Tensor contents_of(const at::Tensor& registered);
// `contents` must have been allocated outside of InferenceMode; it is not changed.
void set_contents(const at::Tensor& registered, const at::Tensor& contents);
// Whether nobody has replaced the contents since set_contents(): same memory, sizes and dtype. Does
// not look at values.
bool has_contents(const at::Tensor& registered, const at::Tensor& contents);
// Dtype, sizes and device, for messages.
std::string describe_contents(const at::Tensor& tensor);

// Modules on the meta device: their parameters and buffers have sizes and dtypes but no memory. So
// a model that no rank could hold is built and sharded first, and each rank then allocates its
// shards only.
//
//   auto model = std::make_shared<Model>();               // whose constructor builds each layer as
//   ...                                                   //   layer = Layer(...); to_meta(*layer);
//   units.push_back(fsdp::fully_shard(*block, group));    // no memory, no values to broadcast
//   modules::to_empty(*model, at::kCPU);                  // memory for this rank's shards
//   state.load(checkpoint);                               // or initialize all parameters and
//   buffers
//
// LibTorch's own modules allocate in their constructors, and Module::to(at::kMeta) throws. Modules
// of your own may also create their tensors with at::TensorOptions(at::kMeta).
//
// Registered tensors keep their identity, gradients and hooks. For one thread at a time per module.

// Frees the memory of all parameters and buffers.
void to_meta(torch::nn::Module& module);

// Allocates those parameters and buffers that are on the meta device, on `device`; as PyTorch's
// Module.to_empty, but others are left as they are. Their values are undefined: set all of them
// before the first forward. Ranks must set different shards, and equal replicas and buffers:
// set_full_tensor() (modules/distribution.h) does, or a checkpoint.
void to_empty(torch::nn::Module& module, at::Device device);

}  // namespace pipewright::modules

#endif  // PIPEWRIGHT_MODULES_META_H_
