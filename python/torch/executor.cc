#include "pipewright/python/torch/executor.h"

#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <utility>

#include "pipewright/ir/errors.h"
#include "pipewright/python/torch/stage.h"

namespace pipewright::python {

namespace py = pybind11;
using executor::Tensors;

namespace {

std::optional<std::chrono::milliseconds> milliseconds_of(double seconds) {
  if (seconds <= 0) return std::nullopt;
  return std::chrono::milliseconds(static_cast<int64_t>(1000 * seconds));
}

executor::LossFunction loss_of(py::object function) {
  if (function.is_none()) return {};
  return executor::LossFunction(
      [held = hold(std::move(function))](const Tensors& outputs, const Tensors& targets) {
        const py::gil_scoped_acquire gil;
        const py::object loss = (*held)(list_of(outputs), list_of(targets));
        if (!THPVariable_Check(loss.ptr())) {
          throw py::type_error("loss_fn: expected to return a tensor, got " +
                               std::string(py::str(py::type::of(loss).attr("__name__"))));
        }
        return THPVariable_Unpack(loss.ptr());
      });
}

// An instance of a class of pipewright_torch._errors.
py::object error_of(const char* name, const std::string& message) {
  return py::module_::import("pipewright_torch._errors").attr(name)(message);
}

// Raises what ended a step.
[[noreturn]] void raise_step_error(const char* name, const std::string& message,
                                   const py::object& cause) {
  const py::object error = error_of(name, message);
  const bool ends_program =
      !cause.is_none() && !PyErr_GivenExceptionMatches(cause.ptr(), PyExc_Exception);
  if (ends_program) raise(cause, error);
  raise(error, cause);
}

}  // namespace

Executor::Executor(const ir::Program& program, const std::vector<Stage>& stages,
                   std::shared_ptr<World> world, const Options& options)
    : world_(std::move(world)), raised_(std::make_shared<Raised>(options.describe)) {
  std::map<int, executor::LocalStage> local;
  for (const Stage& stage : stages) {
    executor::LocalStage& one = local[stage.index];
    one.stage = std::make_shared<PythonStage>(stage.forward, stage.split, gil_);
    if (stage.data_parallel)
      one.data_parallel = std::make_shared<PythonDataParallel>(*stage.data_parallel);
  }
  executor::ExecutorOptions passed;
  passed.loss = loss_of(options.loss);
  passed.scale_grads = options.scale_grads;
  passed.timeout = milliseconds_of(options.timeout);
  passed.first_timeout = milliseconds_of(options.first_timeout);
  passed.device = options.device;
  // PyTorch's wrappers make one stream wait for what they gather: the current one.
  passed.overlap_compounds =
      std::ranges::none_of(stages, [](const Stage& one) { return one.data_parallel.has_value(); });
  passed.input_dims = options.input_dims;
  passed.extra_dims = options.extra_dims;
  passed.extra_of_dims = options.extra_of_dims;
  passed.target_dims = options.target_dims;
  passed.output_dims = options.output_dims;
  passed.dynamic_shapes = options.dynamic_shapes;
  passed.ranks = options.ranks;
  passed.same_batch = options.same_batch;
  passed.describe = [raised = raised_](const std::exception& error) {
    return raised->text_of(error);
  };
  passed.lock = gil_;
  run([&] {
    executor_ = std::make_unique<executor::Executor>(program, std::move(local), world_->get(),
                                                     std::move(passed));
  });
}

Executor::~Executor() {
  if (Py_IsInitialized() && PyGILState_Check()) close();
}

executor::Executor& Executor::get() const {
  if (!executor_) throw ContractError("the schedule has ended");
  return *executor_;
}

void Executor::close() {
  const py::gil_scoped_release release;
  executor_.reset();
}

executor::StepResult Executor::step(const executor::Batch& batch, bool return_outputs,
                                    bool evaluates) {
  executor::StepResult result;
  run([&] {
    executor::Executor& executor = get();
    result =
        evaluates ? executor.eval(batch, return_outputs) : executor.step(batch, return_outputs);
  });
  return result;
}

void Executor::confirm() {
  run([&] { get().confirm(); });
}

int64_t Executor::reset() {
  int64_t step = 0;
  run([&] { step = get().reset(); });
  return step;
}

void Executor::record(bool on) {
  run([&] { get().record(on); });
}

ir::Timeline Executor::recording() {
  ir::Timeline timeline;
  run([&] { timeline = get().recording(); });
  return timeline;
}

void Executor::forget_shapes() {
  run([&] { get().forget_shapes(); });
}

// Calls `body` without the GIL, which the executor takes where it calls Python.
void Executor::run(const std::function<void()>& body) {
  std::exception_ptr thrown;
  {
    const Interrupts::Scope interrupts(world_->interrupts());
    gil_->unlock();
    try {
      body();
    } catch (...) {
      thrown = std::current_exception();
    }
    gil_->lock();
  }
  py::object cause = raised_->take();
  // Runs Python's handlers of signals that have come meanwhile.
  if (PyErr_CheckSignals() != 0) {
    const py::error_already_set interrupt;
    cause = interrupt.value();
  }
  if (!thrown && !cause.is_none()) raise(cause, py::none());
  if (!thrown) return;
  try {
    std::rethrow_exception(thrown);
  } catch (const executor::HangError& error) {
    raise_step_error("HangError", error.what(), cause);
  } catch (const executor::BatchError& error) {
    raise_step_error("BatchError", error.what(), cause);
  } catch (const executor::StepError& error) {
    raise_step_error("StepError", error.what(), cause);
  }  // pybind11 translates others
}

}  // namespace pipewright::python
