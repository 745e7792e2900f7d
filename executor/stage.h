#ifndef PIPEWRIGHT_EXECUTOR_STAGE_H_
#define PIPEWRIGHT_EXECUTOR_STAGE_H_

#include <ATen/core/Tensor.h>

#include <vector>

namespace pipewright::executor {

using Tensors = std::vector<at::Tensor>;

// One stage of a model, as the executor runs it. module_stage.h has it over a torch::nn::Module; a
// user may bring his own, with or without autograd. Called on the thread that runs the step, for
// each microbatch: forward, then backward, or backward_input and later backward_weight. Several
// microbatches are in flight at a time. What a method throws ends the step.
class Stage {
 public:
  virtual ~Stage() = default;

  // F. `inputs` are the tensors of the stage before, or the microbatch's own on the first stage,
  // and behind them the extra inputs of this rank. They are leaves; those that want a gradient
  // require one. If grad mode is on, keeps what backward needs.
  virtual Tensors forward(int microbatch, const Tensors& inputs) = 0;

  // B. Takes a gradient for each output, undefined for those that have none, adds to the gradients
  // of the weights, and returns one for each input, undefined where there is none. The stage
  // forgets the microbatch.
  virtual Tensors backward(int microbatch, Tensors output_grads) = 0;
  // I: as B, and leaves the weights alone.
  virtual Tensors backward_input(int microbatch, Tensors output_grads) = 0;
  // W: what I left. The stage forgets the microbatch.
  virtual void backward_weight(int microbatch) = 0;

  // Before a W whose stage has its weights resharded: throws ContractError, with the reason, if
  // W would read them. Unless a stage knows that it does not, it does.
  virtual void check_weight_free(int microbatch);

  // Forgets all microbatches: the step has failed.
  virtual void clear() = 0;
};

}  // namespace pipewright::executor

#endif  // PIPEWRIGHT_EXECUTOR_STAGE_H_
