#ifndef PIPEWRIGHT_EXECUTOR_MODULE_STAGE_H_
#define PIPEWRIGHT_EXECUTOR_MODULE_STAGE_H_

#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <unordered_map>
#include <utility>

#include "pipewright/autograd/checkpoint.h"
#include "pipewright/autograd/split_backward.h"
#include "pipewright/executor/stage.h"
#include "pipewright/modules/forward.h"
#include "pipewright/modules/tensors.h"

namespace pipewright::executor {

// A stage over any differentiable function, such as the forward of a torch::nn::Module. Its
// backward runs on the autograd graph, whole or split into I and W (autograd/split_backward.h).
// Gradients of the weights accumulate in their .grad, as with .backward():
//
//   auto stage = make_stage(module);                                  // a torch::nn::Module
//   ModuleStage stage([&](const Tensors& inputs) -> Tensors {         // any function
//     return {at::linear(inputs[0], weight)};
//   });
//
// Where the program says that the stage recomputes, the function is called inside
// autograd::checkpoint, twice per microbatch.
//
// Throws ContractError for a backward of a microbatch without a forward. For one thread at a time.
class ModuleStage final : public Stage {
 public:
  // `forward` is called for each F, and again where the stage recomputes. Gradients reach all
  // weights that it uses.
  explicit ModuleStage(autograd::Forward forward);
  ~ModuleStage() override;

  // For modules that compute the gradients of their weights themselves, such as a fused layer that
  // splits its own backward (PyTorch's dw_builder). `make_weight_work` is called after the backward
  // of a microbatch, and returns a function that does the work of its W; B calls it immediately.
  // The autograd graph is not split then.
  void set_weight_work(std::function<std::function<void()>()> make_weight_work);

  Tensors forward(int microbatch, const Tensors& inputs) override;
  Tensors backward(int microbatch, Tensors output_grads) override;
  Tensors backward_input(int microbatch, Tensors output_grads) override;
  void backward_weight(int microbatch) override;
  void check_weight_free(int microbatch) override;
  bool set_recompute(bool recomputes) override;
  void clear() override;

 private:
  struct Kept;
  // Throws ContractError, naming the method `what`, for a microbatch without a forward.
  Kept& kept(int microbatch, const char* what);

  const autograd::Forward forward_;
  std::function<std::function<void()>()> make_weight_work_;
  bool recomputes_ = false;
  std::unordered_map<int, std::unique_ptr<Kept>> kept_;  // by microbatch
};

namespace module_stage_internal {

// The number of tensors that a forward takes; 0 if it takes a vector of them.
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

// A stage over a module: a shared_ptr or a ModuleHolder, called through its wrappers
// (modules/forward.h). The module's forward takes tensors or a vector of them, and returns a
// tensor, a tuple or a vector. The stage's forward throws std::invalid_argument for a different
// number of tensors.
template <typename Module>
std::shared_ptr<ModuleStage> make_stage(Module module) {
  namespace internal = module_stage_internal;
  using Plain = std::decay_t<decltype(*module)>;
  return std::make_shared<ModuleStage>([module](const Tensors& inputs) mutable -> Tensors {
    constexpr size_t kArity = internal::arity_of_forward<Plain>();
    if constexpr (kArity == 0) {
      const auto function = [&module](const Tensors& in) {
        return modules::to_tensors(module->forward(in));
      };
      return modules::call(*module, function, inputs);
    } else {
      if (inputs.size() != kArity) {
        throw std::invalid_argument("forward of the module: expected " + std::to_string(kArity) +
                                    " tensors, got " + std::to_string(inputs.size()));
      }
      return [&]<size_t... I>(std::index_sequence<I...>) {
        return modules::to_tensors(modules::forward(module, inputs[I]...));
      }
      (std::make_index_sequence<kArity>());
    }
  });
}

}  // namespace pipewright::executor

#endif  // PIPEWRIGHT_EXECUTOR_MODULE_STAGE_H_
