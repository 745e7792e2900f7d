// The extension module of pipewright_torch: bindings only. Python code gives arguments their
// defaults and checks them.
//
// Tensors, stores and process groups are torch's own Python types, so this is compiled with the
// pybind11 of the installed torch, and works with that minor version of torch only.
#include <torch/csrc/utils/pybind.h>

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <utility>
#include <vector>

#include "pipewright/autograd/checkpoint.h"
#include "pipewright/comms/process/environment.h"
#include "pipewright/ir/text/schedule_json.h"
#include "pipewright/python/schedule.h"
#include "pipewright/python/torch/executor.h"
#include "pipewright/python/torch/objects.h"
#include "pipewright/python/torch/world.h"
#include "pipewright/schedule/views/svg.h"

namespace py = pybind11;
using py::literals::operator""_a;

namespace pipewright::python {

namespace {

using NoGil = py::call_guard<py::gil_scoped_release>;
using executor::Tensors;

// Lists of tensors and None, one per microbatch.
std::vector<Tensors> microbatches_of(const py::handle& lists, const char* what) {
  std::vector<Tensors> all;
  for (const py::handle list : lists) all.push_back(tensors_of(list, what));
  return all;
}

// A batch from a dict of its fields, which may be left out.
executor::Batch batch_of(const py::dict& fields) {
  executor::Batch batch;
  for (const auto& [name, value] : fields) {
    const auto field = name.cast<std::string>();
    if (field == "inputs") {
      batch.inputs = tensors_of(value, "inputs");
    } else if (field == "extra") {
      batch.extra = tensors_of(value, "kwargs");
    } else if (field == "targets") {
      batch.targets = tensors_of(value, "target");
    } else if (field == "extra_of") {
      for (const auto& [stage, list] : value.cast<py::dict>())
        batch.extra_of[stage.cast<int>()] = tensors_of(list, "stage_kwargs");
    } else if (field == "arg_mbs") {
      batch.per_microbatch.inputs = microbatches_of(value, "arg_mbs");
    } else if (field == "kwarg_mbs") {
      batch.per_microbatch.extra = microbatches_of(value, "kwarg_mbs");
    } else if (field == "target_mbs") {
      batch.per_microbatch.targets = microbatches_of(value, "target_mbs");
    } else {
      throw py::key_error("a batch has no field `" + field + "`");
    }
  }
  return batch;
}

std::shared_ptr<World> make_world(int rank, int size, const std::string& host, uint16_t port,
                                  int restarts, double timeout, at::Device device,
                                  const std::optional<py::capsule>& nccl) {
  comms::Environment environment;
  environment.rank = rank;
  environment.world_size = size;
  environment.master_addr = host;
  environment.master_port = port;
  environment.restarts = restarts;
  const std::chrono::milliseconds limit(static_cast<int64_t>(1000 * timeout));
  const auto backends =
      nccl ? reinterpret_cast<NcclBackends>(PyCapsule_GetPointer(nccl->ptr(), kNcclBackends))
           : nullptr;
  if (nccl && !backends) throw py::error_already_set();
  const py::gil_scoped_release release;
  // Its end waits for threads, and on rank 0 for other ranks to notice it.
  return {new World(environment, limit, device, backends), [](World* world) {
            if (!Py_IsInitialized() || !PyGILState_Check()) {
              delete world;
              return;
            }
            const py::gil_scoped_release released;
            delete world;
          }};
}

void define_program(py::module_& m) {
  py::class_<Schedule>(m, "Program", "A lowered schedule.")
      .def_static(
          "make",
          [](const std::string& name, int ranks, int stages, int microbatches,
             const Policies& policies) {
            return Schedule::make(name, {ranks, stages, microbatches}, {}).lower(policies);
          },
          NoGil())
      .def_static(
          "read",
          [](const std::string& name, const std::string& text, const Policies& policies) {
            return Schedule::read(name, text, 0, 0).lower(policies);
          },
          NoGil())
      .def_property_readonly("name", [](const Schedule& one) { return one.base().name; })
      .def_property_readonly("ranks",
                             [](const Schedule& one) { return one.base().placement.num_ranks(); })
      .def_property_readonly("stages",
                             [](const Schedule& one) { return one.base().placement.num_stages(); })
      .def_property_readonly("microbatches",
                             [](const Schedule& one) { return one.base().num_microbatches; })
      .def_property_readonly("has_backward",
                             [](const Schedule& one) { return ir::has_backward(one.base()); })
      .def("stages_of",
           [](const Schedule& one, int rank) { return one.base().placement.stages_of(rank); });
  py::register_local_exception_translator([](std::exception_ptr pointer) {
    try {
      if (pointer) std::rethrow_exception(pointer);
    } catch (const ScheduleFailure& failure) {
      PyErr_SetString(PyExc_ValueError, failure.what());
    }
  });
}

void define_world(py::module_& m) {
  py::class_<World, std::shared_ptr<World>>(m, "World")
      .def(py::init(&make_world), "rank"_a, "size"_a, "host"_a, "port"_a, "restarts"_a, "timeout"_a,
           "device"_a, "nccl"_a.none(true))
      .def(
          "make_group",
          [](World& world, const std::string& name, const std::vector<int>& ranks) {
            return world.get().make_group(name, ranks);
          },
          NoGil())
      .def(
          "fail", [](World& world, const std::string& text) { return world.get().fail(text); },
          NoGil())
      .def("close", &World::close, NoGil());
}

// A step that ran, with its program.
class RecordedStep {
 public:
  RecordedStep(Schedule program, ir::Timeline timeline)
      : program_(std::move(program)), recording_(ir::recording_of_seconds(std::move(timeline))) {}

  std::string json() const {
    std::ostringstream out;
    ir::print_json(program_.program(), recording_, out);
    return out.str();
  }
  std::string svg() const {
    const ir::Schedule& base = program_.base();
    const ir::Timeline& timeline = recording_.timeline;
    std::ostringstream title, out;
    title << base.name << ": " << base.placement.num_ranks() << " ranks, "
          << base.placement.num_stages() << " stages, " << base.num_microbatches
          << " microbatches; recorded, makespan " << ir::span_of(base.rows, timeline).duration()
          << " " << recording_.unit;
    schedule::print_svg(base, timeline, title.str(), recording_.unit, out);
    return out.str();
  }

 private:
  const Schedule program_;
  const ir::Recording recording_;
};

// Null on other ranks than the first.
std::unique_ptr<RecordedStep> recording_of(Executor& executor, const Schedule& program) {
  ir::Timeline timeline = executor.recording();
  if (timeline.size() == 0) return nullptr;
  return std::make_unique<RecordedStep>(program, std::move(timeline));
}

// autograd::checkpoint_function over a Python function of a list of tensors and None.
py::list checkpoint(py::object function, const py::list& inputs) {
  const autograd::Forward forward = [held = hold(std::move(function))](const Tensors& tensors) {
    const py::gil_scoped_acquire gil;
    return tensors_of((*held)(list_of(tensors)), "outputs of a checkpointed function");
  };
  return list_of(autograd::checkpoint_function(forward, tensors_of(inputs, "inputs")));
}

void define_executor(py::module_& m) {
  using Options = Executor::Options;
  using DataParallel = PythonDataParallel::Options;
  py::class_<DataParallel>(m, "DataParallel")
      .def(py::init([](py::object call, const std::set<std::string>& methods,
                       comms::BackendPtr group, bool frees_parameters) {
             return DataParallel{std::move(call), methods, std::move(group), frees_parameters};
           }),
           "call"_a, "methods"_a, "group"_a.none(true), "frees_parameters"_a);
  py::class_<Executor::Stage>(m, "Stage")
      .def(py::init([](int index, py::object forward, bool split,
                       std::optional<DataParallel> data_parallel) {
             return Executor::Stage{index, std::move(forward), split, std::move(data_parallel)};
           }),
           "index"_a, "forward"_a, "split"_a, "data_parallel"_a);
  py::class_<Options>(m, "Options")
      .def(py::init<>())
      .def_readwrite("loss", &Options::loss)
      .def_readwrite("describe", &Options::describe)
      .def_readwrite("ranks", &Options::ranks)
      .def_readwrite("scale_grads", &Options::scale_grads)
      .def_readwrite("dynamic_shapes", &Options::dynamic_shapes)
      .def_readwrite("timeout", &Options::timeout)
      .def_readwrite("first_timeout", &Options::first_timeout)
      .def_readwrite("device", &Options::device)
      .def_readwrite("input_dims", &Options::input_dims)
      .def_readwrite("extra_dims", &Options::extra_dims)
      .def_readwrite("extra_of_dims", &Options::extra_of_dims)
      .def_readwrite("target_dims", &Options::target_dims)
      .def_readwrite("output_dims", &Options::output_dims)
      .def_readwrite("same_batch", &Options::same_batch);
  py::class_<RecordedStep>(m, "RecordedStep")
      .def("json", &RecordedStep::json, NoGil())
      .def("svg", &RecordedStep::svg, NoGil());
  py::class_<Executor>(m, "Executor")
      .def(py::init([](const Schedule& program, const std::vector<Executor::Stage>& stages,
                       std::shared_ptr<World> world, const Options& options) {
             return std::make_unique<Executor>(program.program(), stages, std::move(world),
                                               options);
           }),
           "program"_a, "stages"_a, "world"_a, "options"_a)
      .def(
          "step",
          [](Executor& executor, const py::dict& batch, bool return_outputs, bool evaluates) {
            const executor::StepResult result =
                executor.step(batch_of(batch), return_outputs, evaluates);
            return py::make_tuple(list_of(result.losses), list_of(result.outputs), result.bubble);
          },
          "batch"_a, "return_outputs"_a, "evaluates"_a)
      .def("confirm", &Executor::confirm)
      .def("reset", &Executor::reset)
      .def("record", &Executor::record, "on"_a)
      .def("recording", &recording_of, "program"_a)
      .def("forget_shapes", &Executor::forget_shapes)
      .def("close", &Executor::close);
}

}  // namespace
}  // namespace pipewright::python

PYBIND11_MODULE(_native, m) {
  py::module_::import("torch._C._distributed_c10d");  // the types of groups
  pipewright::python::define_program(m);
  pipewright::python::define_world(m);
  pipewright::python::define_executor(m);
  m.def("checkpoint", &pipewright::python::checkpoint);
}
