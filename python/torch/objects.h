#ifndef PIPEWRIGHT_PYTHON_TORCH_OBJECTS_H_
#define PIPEWRIGHT_PYTHON_TORCH_OBJECTS_H_

#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <exception>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "pipewright/executor/stage.h"
#include "pipewright/executor/step_lock.h"

// Python objects, the GIL and Python's exceptions, as C++ code sees them that runs on threads with
// and without the GIL.

namespace pipewright::python {

// A Python object that C++ owns, and may drop on any thread, with or without the GIL. An object
// that outlives the interpreter is leaked.
using Held = std::shared_ptr<pybind11::object>;
Held hold(pybind11::object object);

// The GIL as the lock of a step. The thread that calls into the executor has it.
class Gil final : public executor::StepLock {
 public:
  void lock() override {
    if (state_) PyEval_RestoreThread(std::exchange(state_, nullptr));
    freed_.clear();
  }
  void unlock() override {
    if (!state_) state_ = PyEval_SaveThread();
  }
  // Frees tensors that Python has seen, at the next lock(): whoever drops the last reference to one
  // takes the GIL for it.
  void free_later(executor::Tensors tensors) {
    std::ranges::move(tensors, std::back_inserter(freed_));
  }

 private:
  PyThreadState* state_ = nullptr;  // while the thread does not have it
  executor::Tensors freed_;
};

// Tensors as a list, and back. An undefined tensor is None. tensors_of() throws a Python TypeError
// that names `what` for any other object. With the GIL.
pybind11::list list_of(const executor::Tensors& tensors);
executor::Tensors tensors_of(pybind11::handle sequence, const char* what);

// What Python raises while C++ code calls it, directly or through autograd. One object per
// executor; for the thread that runs the step.
class Raised {
 public:
  // `describe` returns the text of a Python exception.
  explicit Raised(pybind11::object describe) : describe_(hold(std::move(describe))) {}

  // The text of an exception for errors on all ranks: "ValueError: out of luck (model.py:52 in
  // forward)". Keeps a Python exception, with its traceback, for take(). With or without the GIL.
  std::string text_of(const std::exception& error);
  // The first Python exception since the last call, or None. Also one that the autograd engine has
  // left as the thread's error indicator. With the GIL.
  pybind11::object take();

 private:
  void keep(pybind11::object value);

  const Held describe_;
  Held first_;
};

// Raises `error`, with `cause` as its __cause__ unless that is None. With the GIL.
[[noreturn]] void raise(const pybind11::object& error, const pybind11::object& cause);

}  // namespace pipewright::python

#endif  // PIPEWRIGHT_PYTHON_TORCH_OBJECTS_H_
