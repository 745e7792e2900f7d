#ifndef PIPEWRIGHT_PYTHON_TORCH_DATA_PARALLEL_H_
#define PIPEWRIGHT_PYTHON_TORCH_DATA_PARALLEL_H_

#include <set>
#include <string>

#include "pipewright/comms/world.h"
#include "pipewright/modules/data_parallel.h"
#include "pipewright/python/torch/objects.h"

namespace pipewright::python {

// A DataParallel whose methods are those of a Python object (pipewright_torch/_data_parallel.py).
class PythonDataParallel final : public modules::DataParallel {
 public:
  struct Options {
    // Calls a method: function(name, *arguments).
    pybind11::object call;
    // The methods that the object has; others do nothing.
    std::set<std::string> methods;
    comms::BackendPtr group = nullptr;
    bool frees_parameters = false;
  };
  // With the GIL.
  explicit PythonDataParallel(const Options& options)
      : call_(hold(options.call)),
        methods_(options.methods),
        group_(options.group),
        frees_parameters_(options.frees_parameters) {}

  c10d::Backend* group() const override { return group_.get(); }
  bool frees_parameters() const override { return frees_parameters_; }
  void step_begins() override { call("step_begins"); }
  void unshard() override { call("unshard"); }
  void wait_unshard() override { call("wait_unshard"); }
  void reshard() override { call("reshard"); }
  void before_backward(int microbatch, bool last) override {
    call("before_backward", microbatch, last);
  }
  void after_last_backward() override { call("after_last_backward"); }
  void reduce_grad() override { call("reduce_grad"); }
  void wait_reduce() override { call("wait_reduce"); }
  void abort() override { call("abort"); }

 private:
  template <typename... Arguments>
  void call(const char* method, Arguments... arguments) {
    if (!methods_.contains(method)) return;
    const pybind11::gil_scoped_acquire gil;
    (*call_)(method, arguments...);
  }

  const Held call_;
  const std::set<std::string> methods_;
  const comms::BackendPtr group_;
  const bool frees_parameters_;
};

}  // namespace pipewright::python

#endif  // PIPEWRIGHT_PYTHON_TORCH_DATA_PARALLEL_H_
