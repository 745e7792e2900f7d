// The Python module: bindings only. Python code in pipewright/__init__.py gives arguments their
// defaults and names; this file converts values, releases the GIL, and turns exceptions.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <initializer_list>
#include <string>

#include "pipewright/python/errors.h"
#include "pipewright/python/schedule.h"
#include "pipewright/python/search.h"
#include "pipewright/python/simulation.h"
#include "pipewright/schedules/registry.h"

namespace nb = nanobind;
using nb::literals::operator""_a;

namespace pipewright::python {
namespace {

using NoGil = nb::call_guard<nb::gil_scoped_release>;

// A value's fields as a dataclass prints them: RankCertificate(activations=4, ...).
std::string repr_of(nb::handle self, std::initializer_list<const char*> fields) {
  std::string text = nb::cast<std::string>(self.type().attr("__name__")) + "(";
  for (const char* field : fields) {
    if (text.back() != '(') text += ", ";
    text += field + std::string("=") + nb::repr(self.attr(field)).c_str();
  }
  return text + ")";
}

// The class pipewright.ScheduleError. Lives as long as the module.
PyObject* schedule_error = nullptr;

void define_errors(nb::module_& m) {
  nb::class_<Diagnostic>(m, "Diagnostic", "An error in a schedule or a costs file.")
      .def_ro("code", &Diagnostic::code, "The rule, such as \"PW042\".")
      .def_ro("message", &Diagnostic::message, "What is wrong; str() also shows where.")
      .def_ro("rank", &Diagnostic::rank, "Place in the schedule, from 0; None if unknown.")
      .def_ro("step", &Diagnostic::step, "Place in the rank's row, from 0; None if unknown.")
      .def_ro("line", &Diagnostic::line, "Place in the file, from 1; None if unknown.")
      .def_ro("column", &Diagnostic::column, "Place in the line, from 1; None if unknown.")
      .def_ro("notes", &Diagnostic::notes, "Further messages.")
      .def_ro("help", &Diagnostic::help, "How to fix it; may be empty.")
      .def("__str__", [](const Diagnostic& one) { return one.text; })
      .def("__repr__", [](const Diagnostic& one) {
        return "<Diagnostic " + one.code + ": " + one.message + ">";
      });
  nb::exception<ScheduleFailure> type(m, "ScheduleError", PyExc_ValueError);
  type.attr("__module__") = "pipewright";
  type.attr("__doc__") = "Errors in a schedule or a costs file; `diagnostics` has them as objects.";
  schedule_error = type.ptr();
  nb::register_exception_translator([](const std::exception_ptr& pointer, void*) {
    try {
      std::rethrow_exception(pointer);
    } catch (const ScheduleFailure& failure) {
      nb::object error = nb::borrow(schedule_error)(nb::str(failure.what()));
      error.attr("diagnostics") = nb::cast(failure.diagnostics);
      PyErr_SetObject(schedule_error, error.ptr());
    }
  });
}

void define_schedule(nb::module_& m) {
  nb::class_<schedule::RankCertificate>(m, "RankCertificate",
                                        "The memory that a verified program needs on one rank.")
      .def_prop_ro(
          "activations",
          [](const schedule::RankCertificate& one) { return one.activations.amount; },
          "The most that are live at a time, each of one microbatch of one stage.")
      .def_prop_ro(
          "receive_buffers",
          [](const schedule::RankCertificate& one) { return one.receive_buffers.amount; },
          "The most that are in use at a time.")
      .def_prop_ro(
          "unsharded_stages",
          [](const schedule::RankCertificate& one) { return one.unsharded_stages.amount; },
          "The most that are unsharded at a time.")
      .def("__repr__", [](nb::handle self) {
        return repr_of(self, {"activations", "receive_buffers", "unsharded_stages"});
      });
  nb::class_<Verdict>(m, "Verdict", "The result of verifying a schedule; true if it is valid.")
      .def_ro("diagnostics", &Verdict::diagnostics, "All errors; empty if the schedule is valid.")
      .def_ro("certificate", &Verdict::certificate, "Per rank; empty if the schedule is invalid.")
      .def("__bool__", [](const Verdict& one) { return one.diagnostics.empty(); })
      .def("__str__",
           [](const Verdict& one) {
             return one.diagnostics.empty() ? std::string("valid") : one.text;
           })
      .def("__repr__", [](nb::handle self) {
        return repr_of(self, {"diagnostics", "certificate"});
      });
  nb::class_<Change>(m, "Change", "How one rank's row differs.")
      .def_ro("removed", &Change::removed, "Actions of the first schedule alone.")
      .def_ro("added", &Change::added, "Actions of the second schedule alone.")
      .def_ro("moved", &Change::moved, "Actions of both, at another place in the row.")
      .def("__bool__",
           [](const Change& one) {
             return !one.removed.empty() || !one.added.empty() || !one.moved.empty();
           })
      .def("__repr__", [](nb::handle self) {
        return repr_of(self, {"removed", "added", "moved"});
      });
  nb::class_<schedule::Costs>(m, "Costs", "Costs of actions, read from the text of a costs file.")
      .def_ro("unit", &schedule::Costs::unit);
  m.def("costs", &costs_of, "name"_a, "text"_a, NoGil());
  m.def(
      "cut",
      [](const schedule::Costs& costs, const Schedule& one) {
        std::vector<std::pair<int, int>> ranges;
        for (const schedule::LayerRange& own : cut_of(costs, one))
          ranges.emplace_back(own.first, own.last);
        return ranges;
      },
      "Returns the first layer of each stage, and the one after its last.");
  nb::class_<Schedule>(m, "Schedule")
      .def_prop_ro("name", [](const Schedule& one) { return one.base().name; })
      .def_prop_ro("ranks", [](const Schedule& one) { return one.base().placement.num_ranks(); })
      .def_prop_ro("stages", [](const Schedule& one) { return one.base().placement.num_stages(); })
      .def_prop_ro(
          "microbatches",
          [](const Schedule& one) { return one.base().num_microbatches / one.base().slices; })
      .def_prop_ro("slices", [](const Schedule& one) { return one.base().slices; })
      .def_prop_ro("placement",
                   [](const Schedule& one) { return one.base().placement.to_string(); })
      .def_prop_ro("replica_ranks",
                   [](const Schedule& one) {
                     std::vector<std::vector<int>> ranks;
                     const ir::Placement& placement = one.base().placement;
                     for (int replica = 0; replica < placement.num_replicas(); ++replica) {
                       const ir::Placement map = placement.replica(replica);
                       std::vector<int>& of_stages = ranks.emplace_back();
                       for (int stage = 0; stage < map.num_stages(); ++stage)
                         of_stages.push_back(map.rank_of(stage));
                     }
                     return ranks;
                   })
      .def_prop_ro(
          "level", [](const Schedule& one) { return std::string(ir::name(one.level())); },
          "\"compute_only\" or \"compute_comms\".")
      .def_prop_ro(
          "cut", [](const Schedule& one) { return one.base().cut; },
          "The layers of each stage; empty if it is for no cut of a model.")
      .def_prop_ro(
          "recompute", [](const Schedule& one) { return one.base().recompute; },
          "The stages that recompute.")
      .def_prop_ro(
          "offload", [](const Schedule& one) { return one.base().offload; },
          "The stages that offload.")
      .def("with_stages", &Schedule::with_stages, "recompute"_a, "offload"_a)
      .def_prop_ro("policies", &Schedule::policies, "The lowering policies that it records.")
      .def_prop_ro("rows", &Schedule::rows, "Per rank, its actions as text; \"\" for an idle slot.")
      .def("__len__",
           [](const Schedule& one) {
             size_t actions = 0;
             for (const ir::Row& row : one.base().rows) actions += row.size();
             return actions;
           })
      .def("__eq__",
           [](const Schedule& one, const Schedule& other) {
             return one.level() == other.level() && one.base() == other.base();
           })
      .def("lower", &Schedule::lower, NoGil())
      .def("verify", &Schedule::verify, NoGil())
      .def("compute_order", &Schedule::compute_order, NoGil(),
           "Returns the schedule without its communication.")
      .def("text", &Schedule::text, "format"_a, NoGil(),
           "Returns the schedule as csv, plan, json or table.")
      .def("diff", &Schedule::diff, "other"_a, NoGil(), "Returns a Change per rank.");
  m.def(
      "make",
      [](const std::string& name, int ranks, int stages, int microbatches, int group_size,
         bool extra_warmup, double memory, int slices, const schedule::Costs& costs) {
        return Schedule::make(
            name, {ranks, stages, microbatches, group_size, extra_warmup, memory, slices}, costs);
      },
      NoGil());
  m.def("read", &Schedule::read, NoGil());
  m.def(
      "schedules",
      [] {
        std::vector<std::string> names;
        for (const schedules::ScheduleSpec* spec : schedules::all_schedules())
          names.emplace_back(spec->name);
        return names;
      },
      "Returns the names of the catalogue.");
}

void define_simulation(nb::module_& m) {
  nb::class_<schedule::RankReport>(m, "RankReport", "One rank's share of a simulated run.")
      .def_ro("start", &schedule::RankReport::start)
      .def_ro("end", &schedule::RankReport::end)
      .def_ro("busy", &schedule::RankReport::busy)
      .def_prop_ro("idle", &schedule::RankReport::idle)
      .def_prop_ro("peak_activations",
                   [](const schedule::RankReport& one) { return one.peak_activations.amount; })
      .def_prop_ro("peak_bytes",
                   [](const schedule::RankReport& one) { return one.peak_bytes.amount; })
      .def_prop_ro(
          "memory",
          [](const schedule::RankReport& one) {
            std::map<std::string, double> parts;
            for (size_t use = 0; use < std::size(schedule::kMemoryUses); ++use)
              parts.emplace(schedule::kMemoryUses[use], one.memory.bytes[use]);
            return parts;
          },
          "What is in use at the peak of bytes, by use; the sum is peak_bytes.")
      .def("__repr__", [](nb::handle self) {
        return repr_of(self, {"start", "end", "busy", "idle", "peak_activations", "peak_bytes"});
      });
  using Times = nb::ndarray<nb::memview, const double, nb::ndim<2>, nb::device::cpu, nb::c_contig>;
  using Numbers =
      nb::ndarray<nb::memview, const double, nb::ndim<1>, nb::device::cpu, nb::c_contig>;
  nb::class_<Simulation>(m, "Simulation", "A simulated run of a schedule.")
      .def_prop_ro("makespan", [](const Simulation& one) { return one.report().makespan; })
      .def_prop_ro(
          "cost", [](const Simulation& one) { return one.report().cost; },
          "The longest span of any rank.")
      .def_prop_ro("bubble_rate", [](const Simulation& one) { return one.report().bubble_rate; })
      .def_prop_ro(
          "bound", [](const Simulation& one) { return one.bound().value; },
          "No order of the same work in the same memory costs less.")
      .def_prop_ro("bound_name",
                   [](const Simulation& one) { return std::string(one.bound().name); })
      .def_prop_ro("ranks", [](const Simulation& one) { return one.report().ranks; })
      .def("times",
           [](nb::handle self, size_t rank) {
             const auto& one = nb::cast<const Simulation&>(self);
             if (rank >= one.timeline().num_ranks())
               throw nb::index_error("rank: there is no such rank");
             const auto row = one.timeline().row(rank);
             return Times(reinterpret_cast<const double*>(row.data()), {row.size(), 2}, self);
           })
      .def("slack",
           [](const Simulation& one) {
             auto* slack = new std::vector<double>(one.slack());
             const nb::capsule owner(slack, [](void* data) noexcept {
               delete static_cast<std::vector<double>*>(data);
             });
             return Numbers(slack->data(), {slack->size()}, owner);
           })
      .def("picture", &Simulation::picture, NoGil())
      .def("html", &Simulation::html, "against"_a.none(), NoGil());
  m.def(
      "simulate",
      [](const Schedule& schedule, const schedule::Costs& costs,
         const std::map<std::string, double>& scale, const std::map<int, double>& slow,
         const std::vector<double>& memory) {
        return Simulation(schedule, costs, scale, slow, memory);
      },
      NoGil());
}

void define_search(nb::module_& m) {
  using schedule::search::Robustness;
  nb::class_<Robustness>(m, "Robustness",
                         "How much longer a schedule takes when times are not as planned.")
      .def_ro("mean", &Robustness::mean)
      .def_ro("percentile_95", &Robustness::percentile_95)
      .def_ro("slow_rank", &Robustness::slow_rank)
      .def_ro("slow_links", &Robustness::slow_links);
  nb::class_<SearchOutcome>(m, "SearchOutcome", "A found schedule, and how good it is.")
      .def_ro("schedule", &SearchOutcome::schedule)
      .def_ro("cost", &SearchOutcome::cost)
      .def_ro("makespan", &SearchOutcome::makespan)
      .def_ro("bubble_rate", &SearchOutcome::bubble_rate)
      .def_ro("bound", &SearchOutcome::bound, "No schedule costs less.")
      .def_ro("bound_name", &SearchOutcome::bound_name)
      .def_ro("gap", &SearchOutcome::gap, "How far the cost is above the bound: 0.1 for 10%.")
      .def_ro("found_by", &SearchOutcome::found_by)
      .def_ro("evaluations", &SearchOutcome::evaluations)
      .def_ro("placement", &SearchOutcome::placement)
      .def_ro("stages", &SearchOutcome::stages)
      .def_ro("memory", &SearchOutcome::memory)
      .def_ro("robustness", &SearchOutcome::robustness)
      .def_ro("front", &SearchOutcome::front)
      .def_ro("is_best", &SearchOutcome::is_best);
  m.def("search", [](int ranks, int microbatches, const std::string& placement, int stages,
                     const schedule::Costs& costs, const std::vector<double>& memory,
                     const std::vector<double>& memory_bytes, int64_t evaluations, double robust,
                     bool robust_by_percentile_95, bool merge_backward, bool layers, bool recompute,
                     bool offload, int slices, int replicas, int threads, uint64_t seed) {
    const nb::gil_scoped_release no_gil;
    using schedule::search::RobustBy;
    return search({ranks, microbatches, placement, stages, costs, memory, memory_bytes, evaluations,
                   robust, robust_by_percentile_95 ? RobustBy::kPercentile95 : RobustBy::kMean,
                   merge_backward, layers, recompute, offload, slices, replicas, threads, seed},
                  [] {
                    const nb::gil_scoped_acquire gil;
                    if (PyErr_CheckSignals() != 0) throw nb::python_error();
                    return false;
                  });
  });
}

}  // namespace
}  // namespace pipewright::python

NB_MODULE(_pipewright, m) {
  m.attr("__version__") = PIPEWRIGHT_VERSION;
  pipewright::python::define_errors(m);
  pipewright::python::define_schedule(m);
  pipewright::python::define_simulation(m);
  pipewright::python::define_search(m);
}
