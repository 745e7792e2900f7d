#include "pipewright/python/torch/stage.h"

#include <c10/core/GradMode.h>

#include <utility>

namespace pipewright::python {

namespace py = pybind11;
using executor::Tensors;

PythonStage::PythonStage(py::object forward, bool split, std::shared_ptr<Gil> gil)
    : forward_(hold(std::move(forward))),
      gil_(std::move(gil)),
      stage_([this](const Tensors& inputs) { return call(inputs); }) {
  if (!split) stage_.set_weight_work([] { return [] {}; });
}

Tensors PythonStage::call(const Tensors& inputs) {
  const py::gil_scoped_acquire gil;
  if (c10::GradMode::is_enabled()) inputs_[microbatch_] = inputs;
  return tensors_of((*forward_)(microbatch_, list_of(inputs)), "outputs of a stage");
}

Tensors PythonStage::forward(int microbatch, const Tensors& inputs) {
  microbatch_ = microbatch;
  return stage_.forward(microbatch, inputs);
}

void PythonStage::set_loss(int microbatch, const at::Tensor& loss) {
  stage_.set_loss(microbatch, loss);
}

Tensors PythonStage::backward(int microbatch, Tensors output_grads) {
  begin_backward(microbatch);
  Tensors grads = stage_.backward(microbatch, std::move(output_grads));
  free_inputs(microbatch);
  return grads;
}

Tensors PythonStage::backward_input(int microbatch, Tensors output_grads) {
  begin_backward(microbatch);
  return stage_.backward_input(microbatch, std::move(output_grads));
}

void PythonStage::backward_weight(int microbatch) {
  begin_backward(microbatch);
  stage_.backward_weight(microbatch);
  free_inputs(microbatch);
}

void PythonStage::clear() {
  stage_.clear();
  inputs_.clear();
}

// Autograd's engine refuses to run on a thread that holds the GIL.
void PythonStage::begin_backward(int microbatch) {
  microbatch_ = microbatch;
  gil_->unlock();
}

void PythonStage::free_inputs(int microbatch) {
  if (auto inputs = inputs_.extract(microbatch)) gil_->free_later(std::move(inputs.mapped()));
}

}  // namespace pipewright::python
