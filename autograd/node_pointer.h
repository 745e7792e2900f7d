#ifndef PIPEWRIGHT_AUTOGRAD_NODE_POINTER_H_
#define PIPEWRIGHT_AUTOGRAD_NODE_POINTER_H_

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/autograd/function.h>
#include <torch/headeronly/version.h>

#include <memory>
#include <utility>

// Pointers to nodes of the autograd graph, which differ between the supported versions of LibTorch.
// No other file depends on the version.

namespace pipewright::autograd {

#if TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR < 13

template <typename T>
using NodePtrOf = std::shared_ptr<T>;
using WeakNodePtr = std::weak_ptr<torch::autograd::Node>;

#else

template <typename T>
using NodePtrOf = c10::intrusive_ptr<T>;
using WeakNodePtr = c10::weak_intrusive_ptr<torch::autograd::Node>;

#endif

using NodePtr = NodePtrOf<torch::autograd::Node>;

// Creates a node. Destroying the last pointer to it does not overflow the stack, however deep the
// graph below it.
template <typename T, typename... Args>
[[nodiscard]] NodePtrOf<T> make_node(Args&&... args) {
#if TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR < 13
  return {new T(std::forward<Args>(args)...), torch::autograd::deleteNode};
#else
  return c10::make_intrusive<T>(std::forward<Args>(args)...);
#endif
}

}  // namespace pipewright::autograd

#endif  // PIPEWRIGHT_AUTOGRAD_NODE_POINTER_H_
