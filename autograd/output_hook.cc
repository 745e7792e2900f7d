// A write to a view gives its base a new node, which leads to the base's old node, and the view's
// node is rebuilt on top of the new one. So every path from the view into what computed it passes
// the base's old node, before the write and after it. In between there are only views.
//
// The view's own node has the hook too. Without a write it runs before the base's, and so before
// the backward of other results that were computed from the base and that the caller may also use.
#include "pipewright/autograd/output_hook.h"

#include <torch/csrc/autograd/engine.h>

#include <cstdint>
#include <memory>
#include <utility>

namespace pipewright::autograd {

void on_backward_of(const at::Tensor& output, std::function<void()> hook) {
  const auto can_have_hook = [](const at::TensorBase& tensor) {
    return tensor.requires_grad() && !tensor.is_leaf();
  };
  if (!can_have_hook(output)) return;
  const auto once = [hook = std::move(hook),
                     last = std::make_shared<int64_t>(-1)](const at::TensorBase&) {
    const int64_t backward = torch::autograd::get_current_graph_task_id();
    if (std::exchange(*last, backward) != backward) hook();
  };
  output.register_hook(once);
  if (output.is_view() && can_have_hook(output._base())) output._base().register_hook(once);
}

}  // namespace pipewright::autograd
