#ifndef PIPEWRIGHT_MODULES_CONTENTS_H_
#define PIPEWRIGHT_MODULES_CONTENTS_H_

#include <ATen/core/Tensor.h>

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

}  // namespace pipewright::modules

#endif  // PIPEWRIGHT_MODULES_CONTENTS_H_
