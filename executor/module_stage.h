#ifndef PIPEWRIGHT_EXECUTOR_MODULE_STAGE_H_
#define PIPEWRIGHT_EXECUTOR_MODULE_STAGE_H_

#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <tuple>
#include <type_traits>
#include <unordered_map>
#include <utility>

#include "pipewright/autograd/checkpoint.h"
#include "pipewright/autograd/split_backward.h"
#include "pipewright/executor/stage.h"

namespace pipewright::executor {

// A stage over any differentiable function, such as the forward of a torch::nn::Module: backward
// runs on the autograd graph, split_backward.h says how it is split. Weights get their gradients in
// .grad, as with .backward(). For one thread at a time.
class ModuleStage final : public Stage {
 public:
  // Called in forward; gradients reach whatever weights it uses.
  explicit ModuleStage(autograd::Forward forward);
  ~ModuleStage() override;

  // For modules whose weights' gradients are not autograd's, such as a fused layer that splits its
  // own backward (PyTorch's dw_builder): called after the backward of a microbatch, it gives what
  // W is to do. B does it at once. Nothing is split on the graph then.
  void set_weight_work(std::function<std::function<void()>()> make_weight_work);

  Tensors forward(int microbatch, const Tensors& inputs) override;
  Tensors backward(int microbatch, Tensors output_grads) override;
  Tensors backward_input(int microbatch, Tensors output_grads) override;
  void backward_weight(int microbatch) override;
  void check_weight_free(int microbatch) override;
  void clear() override;

 private:
  struct Kept;
  Kept& kept(int microbatch, const char* what);

  const autograd::Forward forward_;
  std::function<std::function<void()>()> make_weight_work_;
  std::unordered_map<int, std::unique_ptr<Kept>> kept_;  // by microbatch
};

namespace module_stage_internal {

inline Tensors to_tensors(at::Tensor output) { return {std::move(output)}; }
inline Tensors to_tensors(Tensors outputs) { return outputs; }
template <typename... T>
Tensors to_tensors(std::tuple<T...> outputs) {
  return std::apply([](auto&&... output) { return Tensors{std::move(output)...}; },
                    std::move(outputs));
}

// How many tensors a forward takes; 0 for one that takes a list of them.
template <typename Result, typename Module, typename... Inputs>
constexpr size_t arity(Result (Module::*)(Inputs...)) {
  if constexpr (sizeof...(Inputs) == 1)
    return (std::is_same_v<std::decay_t<Inputs>, Tensors> && ...) ? 0 : 1;
  return sizeof...(Inputs);
}
template <typename Result, typename Module, typename... Inputs>
constexpr size_t arity(Result (Module::*)(Inputs...) const) {
  return arity(static_cast<Result (Module::*)(Inputs...)>(nullptr));
}

template <typename Module>
constexpr size_t arity_of_forward() {
  if constexpr (requires { &Module::forward; })
    return arity(decltype(&Module::forward){});
  else
    return 1;  // a template, such as torch::nn::Sequential's
}

}  // namespace module_stage_internal

// Over a module: a shared_ptr or a ModuleHolder of one, whose forward takes tensors, or a vector of
// them, and returns a tensor, a tuple or a vector. Throws std::invalid_argument in forward if it is
// given another number of tensors.
template <typename Module>
std::shared_ptr<ModuleStage> make_stage(Module module) {
  namespace internal = module_stage_internal;
  using Plain = std::decay_t<decltype(*module)>;
  return std::make_shared<ModuleStage>([module](const Tensors& inputs) mutable -> Tensors {
    constexpr size_t kArity = internal::arity_of_forward<Plain>();
    if constexpr (kArity == 0) {
      return internal::to_tensors(module->forward(inputs));
    } else {
      if (inputs.size() != kArity) {
        throw std::invalid_argument("the module's forward takes " + std::to_string(kArity) +
                                    " tensors, and is given " + std::to_string(inputs.size()));
      }
      return [&]<size_t... I>(std::index_sequence<I...>) {
        return internal::to_tensors(module->forward(inputs[I]...));
      }
      (std::make_index_sequence<kArity>());
    }
  });
}

}  // namespace pipewright::executor

#endif  // PIPEWRIGHT_EXECUTOR_MODULE_STAGE_H_
