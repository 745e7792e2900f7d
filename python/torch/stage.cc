#include "pipewright/python/torch/stage.h"

#include <optional>
#include <utility>

namespace pipewright::python {

namespace py = pybind11;
using executor::Tensors;

namespace {

// Autograd's engine refuses to run on a thread that holds the GIL.
class GilReleased {
 public:
  GilReleased() {
    if (PyGILState_Check()) release_.emplace();
  }

 private:
  std::optional<py::gil_scoped_release> release_;
};

}  // namespace

PythonStage::PythonStage(py::object forward, bool split)
    : forward_(hold(std::move(forward))),
      stage_([this](const Tensors& inputs) { return call(inputs); }) {
  if (!split) stage_.set_weight_work([] { return [] {}; });
}

Tensors PythonStage::call(const Tensors& inputs) const {
  const py::gil_scoped_acquire gil;
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
  microbatch_ = microbatch;
  const GilReleased released;
  return stage_.backward(microbatch, std::move(output_grads));
}

Tensors PythonStage::backward_input(int microbatch, Tensors output_grads) {
  microbatch_ = microbatch;
  const GilReleased released;
  return stage_.backward_input(microbatch, std::move(output_grads));
}

void PythonStage::backward_weight(int microbatch) {
  microbatch_ = microbatch;
  const GilReleased released;
  stage_.backward_weight(microbatch);
}

}  // namespace pipewright::python
