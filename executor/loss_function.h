#ifndef PIPEWRIGHT_EXECUTOR_LOSS_FUNCTION_H_
#define PIPEWRIGHT_EXECUTOR_LOSS_FUNCTION_H_

#include <concepts>
#include <functional>
#include <utility>

#include "pipewright/executor/stage.h"

namespace pipewright::executor {

// The loss of one microbatch, a tensor with one element. Made from any function of the outputs of
// the last stage and the targets, or of the outputs alone:
//
//   LossFunction([](const Tensors& outputs, const Tensors& targets) { return ...; })
//   LossFunction([](const Tensors& outputs) { return outputs[0].sum(); })
//
// It may write to the outputs in place, as it may without a pipeline, and use tensors that the last
// stage has computed besides its outputs. A step whose loss takes targets is not run without them.
class LossFunction {
 public:
  LossFunction() = default;

  template <typename Function>
  requires std::invocable<Function&, const Tensors&, const Tensors&> LossFunction(
      Function function)  // NOLINT(google-explicit-constructor)
      : function_(std::move(function)), takes_targets_(true) {}

  template <typename Function>
  requires std::invocable<Function&, const Tensors&> LossFunction(
      Function function)  // NOLINT(google-explicit-constructor)
      : function_([function = std::move(function)](const Tensors& outputs, const Tensors&) mutable {
          return function(outputs);
        }) {}

  explicit operator bool() const { return function_ != nullptr; }
  bool takes_targets() const { return takes_targets_; }

  at::Tensor operator()(const Tensors& outputs, const Tensors& targets) const {
    return function_(outputs, targets);
  }

 private:
  std::function<at::Tensor(const Tensors& outputs, const Tensors& targets)> function_;
  bool takes_targets_ = false;
};

}  // namespace pipewright::executor

#endif  // PIPEWRIGHT_EXECUTOR_LOSS_FUNCTION_H_
