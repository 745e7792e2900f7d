#include "pipewright/python/torch/objects.h"

#include <c10/util/Exception.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>

namespace pipewright::python {

namespace py = pybind11;

namespace {

// Takes the error indicator of this thread, which must be set, as an exception with its traceback.
py::object fetch() {
  const py::error_already_set set;
  py::object value = set.value();
  if (set.trace()) PyException_SetTraceback(value.ptr(), set.trace().ptr());
  return value;
}

// The Python exception that `error` carries; null if it is one of C++.
py::object value_of(const std::exception& error) {
  if (const auto* set = dynamic_cast<const py::error_already_set*>(&error)) {
    py::object value = set->value();
    if (set->trace()) PyException_SetTraceback(value.ptr(), set->trace().ptr());
    return value;
  }
  // One that C++ code has thrown for Python, such as a TypeError.
  if (const auto* builtin = dynamic_cast<const py::builtin_exception*>(&error)) {
    builtin->set_error();
    return fetch();
  }
  // Of a Python node in the autograd graph. The engine has restored it as the error indicator, too.
  if (const auto* of_torch = dynamic_cast<const python_error*>(&error)) {
    if (of_torch->type) python_error(*of_torch).restore();
    if (PyErr_Occurred()) return fetch();
  }
  return {};
}

}  // namespace

Held hold(py::object object) {
  return {new py::object(std::move(object)), [](py::object* held) {
            if (!Py_IsInitialized()) {
              held->release();
              delete held;
              return;
            }
            const py::gil_scoped_acquire gil;
            delete held;
          }};
}

py::list list_of(const executor::Tensors& tensors) {
  py::list all(tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i)
    all[i] = tensors[i].defined() ? py::cast(tensors[i]) : py::none();
  return all;
}

executor::Tensors tensors_of(py::handle sequence, const char* what) {
  executor::Tensors all;
  for (const py::handle one : sequence) {
    if (one.is_none()) {
      all.emplace_back();
    } else if (THPVariable_Check(one.ptr())) {
      all.push_back(THPVariable_Unpack(one.ptr()));
    } else {
      throw py::type_error(std::string(what) + ": expected tensors and None, got " +
                           std::string(py::str(py::type::of(one).attr("__name__"))));
    }
  }
  return all;
}

std::string Raised::text_of(const std::exception& error) {
  const py::gil_scoped_acquire gil;
  const py::object value = value_of(error);
  if (!value) {
    const auto* of_c10 = dynamic_cast<const c10::Error*>(&error);
    return of_c10 ? of_c10->what_without_backtrace() : error.what();
  }
  keep(value);
  try {
    return py::str((*describe_)(value));
  } catch (const py::error_already_set&) {  // its __str__ fails
    return py::str(py::type::of(value).attr("__name__"));
  }
}

py::object Raised::take() {
  if (PyErr_Occurred()) keep(fetch());
  if (!first_) return py::none();
  py::object value = *first_;
  first_.reset();
  return value;
}

void Raised::keep(py::object value) {
  if (!first_) first_ = hold(std::move(value));
}

void raise(const py::object& error, const py::object& cause) {
  if (!cause.is_none()) PyException_SetCause(error.ptr(), py::object(cause).release().ptr());
  PyErr_SetObject(py::type::of(error).ptr(), error.ptr());
  throw py::error_already_set();
}

}  // namespace pipewright::python
