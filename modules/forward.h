#ifndef PIPEWRIGHT_MODULES_FORWARD_H_
#define PIPEWRIGHT_MODULES_FORWARD_H_

#include <torch/nn/module.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <type_traits>
#include <utility>

#include "pipewright/modules/tensors.h"

// Calls modules through their wrappers. PyTorch's modules run hooks around their forward;
// LibTorch's have none. So modules that may be wrapped (fully_shard, replicate) are called by
//
//   at::Tensor y = modules::forward(block, x);     // not block->forward(x)
//
// also inside the forward of another module. This is a plain call if the module has no wrapper.

namespace torch::nn {
class AnyModule;
class SequentialImpl;
}  // namespace torch::nn

namespace pipewright::modules {

// What a wrapper does around each forward of a module.
class ForwardHook {
 public:
  using Function = std::function<Tensors(const Tensors&)>;
  virtual ~ForwardHook() = default;
  // Calls `forward`, usually with `inputs`, and returns its outputs, or others.
  virtual Tensors run(const torch::nn::Module* module, const Function& forward, Tensors inputs) = 0;
};

// Registers `hook` for calls of `module`, around the hooks that it has. Owns neither: the hook is
// called as long as both exist. Thread-safe.
void register_forward_hook(const torch::nn::Module& module,
                           const std::shared_ptr<ForwardHook>& hook);

// Calls `function(inputs)` as the forward of `module`, for methods with a name other than forward.
// Undefined inputs are passed on. `function` must not write in place to inputs that require grad.
// Thread-safe, as far as the hooks are.
Tensors call(const torch::nn::Module& module, const ForwardHook::Function& function,
             const Tensors& inputs);

template <typename Module, typename... Inputs>
auto forward(const Module& module, const Inputs&... inputs);

// Calls the children of a torch::nn::Sequential one after another through their hooks, the first
// one with all inputs. This is the forward of a class derived from torch::nn::SequentialImpl, such
// as one that is nested in another Sequential:
//
//   struct BlockImpl : torch::nn::SequentialImpl {
//     using SequentialImpl::SequentialImpl;
//     at::Tensor forward(const at::Tensor& x) { return modules::forward_children(*this, x); }
//   };
template <typename Sequential, typename... Inputs>
at::Tensor forward_children(Sequential& sequential, const at::Tensor& input,
                            const Inputs&... others) {
  at::Tensor x = input;
  bool is_first = true;
  for (const auto& child : sequential)
    x = std::exchange(is_first, false) ? forward(child, x, others...) : forward(child, x);
  return x;
}

// Calls module->forward(inputs...) through the module's hooks. `module` is a shared_ptr, a
// ModuleHolder or a torch::nn::AnyModule, the inputs are tensors, and the result consists of
// tensors (tensors.h); of an AnyModule or a torch::nn::Sequential it is a tensor. The children of a
// Sequential, which return one tensor each, are called through their hooks too.
template <typename Module, typename... Inputs>
auto forward(const Module& module, const Inputs&... inputs) {
  auto callee = module;  // a ModuleHolder's operator-> is const, the module it returns is not
  if constexpr (std::is_same_v<Module, torch::nn::AnyModule>) {
    const auto function = [&callee](const Tensors& moved) {
      return [&]<size_t... I>(std::index_sequence<I...>) {
        return Tensors{callee.template forward<at::Tensor>(at::Tensor(moved[I])...)};
      }
      (std::make_index_sequence<sizeof...(Inputs)>());
    };
    return from_tensors<at::Tensor>(call(*callee.ptr(), function, Tensors{inputs...}));
  } else if constexpr (std::is_same_v<std::decay_t<decltype(*callee)>, torch::nn::SequentialImpl>) {
    const auto function = [&callee](const Tensors& moved) {
      return [&]<size_t... I>(std::index_sequence<I...>) {
        return Tensors{forward_children(*callee, moved[I]...)};
      }
      (std::make_index_sequence<sizeof...(Inputs)>());
    };
    return from_tensors<at::Tensor>(call(*callee, function, Tensors{inputs...}));
  } else {
    using Result = std::decay_t<decltype(callee->forward(inputs...))>;
    const auto function = [&callee](const Tensors& moved) {
      return [&]<size_t... I>(std::index_sequence<I...>) {
        return to_tensors(callee->forward(moved[I]...));
      }
      (std::make_index_sequence<sizeof...(Inputs)>());
    };
    return from_tensors<Result>(call(*callee, function, Tensors{inputs...}));
  }
}

}  // namespace pipewright::modules

#endif  // PIPEWRIGHT_MODULES_FORWARD_H_
