#ifndef PIPEWRIGHT_DDP_LINKED_PARAMS_H_
#define PIPEWRIGHT_DDP_LINKED_PARAMS_H_

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "pipewright/autograd/hooks.h"
#include "pipewright/autograd/node_pointer.h"
#include "pipewright/ddp/grad_buckets.h"

namespace pipewright::ddp {

// The parameters of one replicate() call, and the hooks through which their gradients reach it.
// Casting or moving a module replaces the gradient accumulators of its parameters, and the hooks
// with them, silently; parameters may also be frozen and unfrozen. link() adopts all of that.
//
// For one thread at a time, besides the thread of a backward.
class LinkedParams {
 public:
  void add(std::string name, at::Tensor tensor) {
    params_.push_back({std::move(name), std::move(tensor)});
  }
  size_t size() const { return params_.size(); }
  const std::string& name(size_t i) const { return params_[i].name; }
  const at::Tensor& tensor(size_t i) const { return params_[i].tensor; }

  // Sets the receiver of the hooks. `on_grad` is called in each backward that reaches a parameter,
  // before its gradient is accumulated, whether or not the parameter is linked.
  void set_listener(std::weak_ptr<autograd::GradListener> listener,
                    const std::function<void(size_t)>& on_grad);

  // Whether the gradients of exactly those parameters reach the listener that require grad and that
  // no other unit trains.
  bool are_linked() const;
  // Whether the gradient of a parameter reaches the listener, or another unit.
  bool is_linked(size_t i) const { return is_ours(i) || is_of_other_unit(i); }
  // Makes are_linked() true. Returns the linked parameters. `any_dtype`: their hooks receive
  // gradients in the dtype in which they are computed, otherwise in that of the parameter.
  std::vector<NamedTensor> link(bool any_dtype);
  // The index of a parameter in what link() returned last; nullopt if it was not linked.
  std::optional<size_t> linked_index(size_t i) const { return params_[i].linked_index; }

 private:
  struct Param {
    std::string name;
    at::Tensor tensor;
    // Its gradient accumulator; null before it is trained. A parameter does not own its
    // accumulator, and the hooks live as long as it does.
    autograd::NodePtr accumulator = nullptr;
    std::optional<size_t> linked_index = std::nullopt;
  };
  bool is_ours(size_t i) const;
  bool is_of_other_unit(size_t i) const;

  std::vector<Param> params_;
  std::weak_ptr<autograd::GradListener> listener_;
};

}  // namespace pipewright::ddp

#endif  // PIPEWRIGHT_DDP_LINKED_PARAMS_H_
