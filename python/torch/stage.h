#ifndef PIPEWRIGHT_PYTHON_TORCH_STAGE_H_
#define PIPEWRIGHT_PYTHON_TORCH_STAGE_H_

#include <map>
#include <memory>

#include "pipewright/executor/module_stage.h"
#include "pipewright/executor/stage.h"
#include "pipewright/python/torch/objects.h"

namespace pipewright::python {

// A stage whose forward is a Python function of (microbatch, inputs), where inputs is a list of
// tensors and None, that returns such a list. Its backward runs without the GIL on the graph that
// Python's autograd has recorded; nodes of Python take it.
class PythonStage final : public executor::Stage {
 public:
  // Without `split`, I runs the whole backward, and W does nothing: for graphs that only a whole
  // backward may run, such as those of torch.compile. `gil` is the lock of the executor's steps.
  PythonStage(pybind11::object forward, bool split, std::shared_ptr<Gil> gil);

  executor::Tensors forward(int microbatch, const executor::Tensors& inputs) override;
  executor::Tensors backward(int microbatch, executor::Tensors output_grads) override;
  executor::Tensors backward_input(int microbatch, executor::Tensors output_grads) override;
  void backward_weight(int microbatch) override;
  void check_weight_free(int microbatch) override { stage_.check_weight_free(microbatch); }
  bool joins_loss() const override { return stage_.joins_loss(); }
  void set_loss(int microbatch, const at::Tensor& loss) override;
  bool set_recompute(bool recomputes) override { return stage_.set_recompute(recomputes); }
  void clear() override;

 private:
  executor::Tensors call(const executor::Tensors& inputs);
  void begin_backward(int microbatch);
  void free_inputs(int microbatch);

  const Held forward_;
  const std::shared_ptr<Gil> gil_;
  int microbatch_ = 0;  // whose action runs
  std::map<int, executor::Tensors>
      inputs_;  // that Python has seen, by microbatch, for free_later()
  executor::ModuleStage stage_;
};

}  // namespace pipewright::python

#endif  // PIPEWRIGHT_PYTHON_TORCH_STAGE_H_
