#ifndef PIPEWRIGHT_EXECUTOR_STAGE_H_
#define PIPEWRIGHT_EXECUTOR_STAGE_H_

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "pipewright/comms/side_stream.h"
#include "pipewright/modules/data_parallel.h"

namespace pipewright::executor {

using Tensors = std::vector<at::Tensor>;

// One stage of a model, as the executor runs it.
//
// Most trainers use make_stage() (module_stage.h), which implements this interface over a
// torch::nn::Module. Implement it for a stage that implements its own backward:
//
//   // Multiplies its input by a scalar weight, without autograd.
//   class Scale final : public Stage {
//    public:
//     Tensors forward(int microbatch, const Tensors& inputs) override {
//       inputs_[microbatch] = inputs[0];
//       // Only outputs that require a gradient receive one.
//       return {(weight * inputs[0]).detach().requires_grad_(at::GradMode::is_enabled())};
//     }
//     Tensors backward_input(int microbatch, Tensors output_grads) override {
//       output_grads_[microbatch] = output_grads[0];
//       return {weight * output_grads[0]};
//     }
//     void backward_weight(int microbatch) override {
//       weight_grad += (inputs_[microbatch] * output_grads_[microbatch]).sum();
//       inputs_.erase(microbatch);
//       output_grads_.erase(microbatch);
//     }
//     Tensors backward(int microbatch, Tensors output_grads) override {
//       Tensors input_grads = backward_input(microbatch, std::move(output_grads));
//       backward_weight(microbatch);
//       return input_grads;
//     }
//     void clear() override { inputs_ = output_grads_ = {}; }
//
//     at::Tensor weight = at::ones({}), weight_grad = at::zeros({});
//
//    private:
//     std::map<int, at::Tensor> inputs_, output_grads_;  // by microbatch
//   };
//
// The executor calls all methods on the thread that runs the step: for each microbatch forward,
// then either backward, or backward_input and later backward_weight. Several microbatches are in
// flight at a time. On a device with streams, all methods for a microbatch are called on one
// stream, which is not the same for all microbatches if the program has compounds; the two streams
// run at the same time during a compound only. An exception from any method ends the step on every
// rank.
class Stage {
 public:
  virtual ~Stage() = default;

  // F. `inputs` are the outputs of the previous stage, or on the first stage the microbatch's own
  // inputs, followed by extra inputs. All inputs are leaves; an input requires a
  // gradient if its gradient flows back to the previous stage or to the caller of step(). Inputs
  // and outputs may be undefined. Saves what backward needs if grad mode is enabled; evaluation
  // disables it.
  virtual Tensors forward(int microbatch, const Tensors& inputs) = 0;

  // B. Takes one gradient per output, undefined for outputs without one. Accumulates the gradients
  // of the weights and returns one gradient per input, undefined for inputs without one. Frees
  // what is saved for the microbatch.
  virtual Tensors backward(int microbatch, Tensors output_grads) = 0;
  // I: like backward, but leaves the gradients of the weights to backward_weight.
  virtual Tensors backward_input(int microbatch, Tensors output_grads) = 0;
  // W: the rest of the backward after I. Frees what is saved for the microbatch.
  virtual void backward_weight(int microbatch) = 0;

  // Called before a W that runs while the stage's parameters are resharded (weight-free W). Throws
  // ContractError with the reason if that W would read the weights. The default always throws:
  // a stage that never reads its weights in W overrides it.
  virtual void check_weight_free(int microbatch);

  // Called in F of the last stage in a training step, before its loss is computed. If a stage
  // returns true, the graph of the loss goes on from that of its outputs, so that one backward
  // covers both: set_loss() follows, and the backward takes the gradient of the loss instead of
  // those of the outputs. The default returns false: the loss has a backward of its own before the
  // stage's.
  virtual bool joins_loss() const { return false; }
  virtual void set_loss(int /*microbatch*/, const at::Tensor& /*loss*/) {}

  // Called before each training step: whether the program says that the stage recomputes
  // (ir::Schedule::recompute). If so, F saves its inputs only, and B or I runs it again. Returns
  // whether the stage can do what is asked; the default cannot recompute.
  virtual bool set_recompute(bool recomputes) { return !recomputes; }

  // Called before B or I of such a stage, which then waits for its gradient: the stage may run its
  // forward again here, if it likes. The default leaves it to the backward.
  virtual void recompute(int /*microbatch*/) {}

  // Called before each training step on a device: whether the program says that the stage offloads
  // (ir::Schedule::offload). If so, the executor calls copy_to_host() for a microbatch after its F,
  // free_on_device() later, and copy_back() ahead of its B or I, which the stage must have wait for
  // the copy. Both copies run on the given stream, and neither call blocks the host. Returns
  // whether the stage can do it; the default cannot.
  virtual bool set_offload(bool offloads) { return !offloads; }
  virtual void copy_to_host(int /*microbatch*/, comms::SideStream& /*stream*/) {}
  virtual void free_on_device(int /*microbatch*/) {}
  virtual void copy_back(int /*microbatch*/, comms::SideStream& /*stream*/) {}

  // Called before each step: into how many slices microbatches are cut (ir::Schedule::slices). With
  // more than one, each has the place of a microbatch in all methods, and `microbatch` counts the
  // slices of all. Returns whether the stage can do it; the default cannot.
  virtual bool set_slices(int slices) { return slices == 1; }

  // Frees what is saved for all microbatches, after a failed step or an incomplete program.
  virtual void clear() = 0;
};

// A stage that this rank runs, and how its parameters are sharded or replicated over other ranks.
struct LocalStage {
  std::shared_ptr<Stage> stage;
  std::shared_ptr<modules::DataParallel> data_parallel = nullptr;  // null: only this rank has them
};

}  // namespace pipewright::executor

#endif  // PIPEWRIGHT_EXECUTOR_STAGE_H_
