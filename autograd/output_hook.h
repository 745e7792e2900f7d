#ifndef PIPEWRIGHT_AUTOGRAD_OUTPUT_HOOK_H_
#define PIPEWRIGHT_AUTOGRAD_OUTPUT_HOOK_H_

#include <ATen/core/Tensor.h>

#include <functional>

namespace pipewright::autograd {

// Registers a hook that a backward calls, once, before it runs what `output` was computed from. A
// plain hook of a view is lost when the view, or another view of the same memory, is written to in
// place later: autograd rebuilds the graph of the view without the node that has the hook. This one
// is called in that case too.
//
//   on_backward_of(output, [unit] { unit->gather(); });
//
// Without effect for a leaf and for a tensor that requires no gradient. An exception from `hook`
// ends the backward.
void on_backward_of(const at::Tensor& output, std::function<void()> hook);

}  // namespace pipewright::autograd

#endif  // PIPEWRIGHT_AUTOGRAD_OUTPUT_HOOK_H_
