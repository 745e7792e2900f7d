#ifndef PIPEWRIGHT_MODULES_GRAD_SCALER_H_
#define PIPEWRIGHT_MODULES_GRAD_SCALER_H_

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <vector>

#include "pipewright/comms/world.h"

namespace pipewright::modules {

// Scales losses so that small gradients do not vanish in fp16, as PyTorch's torch.amp.GradScaler.
// If a gradient overflows on any rank, all ranks skip the optimizer's step, and the scale shrinks.
//
//   GradScaler scaler(mesh.group({"pp", "dp"}));  // all ranks that step together
//   scaler.scale(loss).backward();
//   scaler.unscale_(parameters);                  // only needed before clipping
//   scaler.step(optimizer);
//   scaler.update();
//
// In a pipeline, the executor's loss function calls scale_gradient() instead, because what it
// returns is reported in StepResult::losses:
//
//   const auto loss = [&](const Tensors& outputs, const Tensors& targets) {
//     return scaler.scale_gradient(at::cross_entropy_loss(outputs[0], targets[0]));
//   };
//
// For one thread at a time.
class GradScaler {
 public:
  struct Options {
    double init_scale = 65536;
    double growth_factor = 2, backoff_factor = 0.5;
    int growth_interval = 2000;  // steps without an overflow, after which the scale grows
  };
  // Throws std::invalid_argument unless 0 < backoff_factor < 1 < growth_factor, init_scale > 0 and
  // growth_interval > 0.
  explicit GradScaler(comms::BackendPtr group) : GradScaler(std::move(group), Options{}) {}
  GradScaler(comms::BackendPtr group, Options options);

  at::Tensor scale(const at::Tensor& loss) const { return loss * scale_; }
  // The value of `loss`, with the backward of scale(loss).
  at::Tensor scale_gradient(const at::Tensor& loss) const;
  double get_scale() const { return scale_; }

  // Divides the gradients by the scale, and finds whether one of them is infinite or NaN on any
  // rank. As in PyTorch, one kernel does both for all gradients of a dtype, and multiplies by the
  // scale's reciprocal, a float. A parameter that is listed twice counts once. Collective over the
  // group. Throws ContractError if called twice before update().
  void unscale_(const std::vector<at::Tensor>& parameters);
  // Steps the optimizer, after unscale_() of its parameters if that was not called, unless
  // found_inf(). Returns whether it stepped.
  bool step(torch::optim::Optimizer& optimizer);
  // Makes the scale smaller after an overflow, and larger after growth_interval steps without.
  // Throws ContractError if no unscale_() or step() came before.
  void update();
  // Whether the last unscale_() has found an overflow, on this rank or on another one. The first
  // call after unscale_() waits for the device.
  bool found_inf();

 private:
  const comms::BackendPtr group_;
  const Options options_;
  double scale_;
  int steps_without_inf_ = 0;
  at::Tensor found_inf_;  // 0 or 1; undefined before unscale_()
};

}  // namespace pipewright::modules

#endif  // PIPEWRIGHT_MODULES_GRAD_SCALER_H_
