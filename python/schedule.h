#ifndef PIPEWRIGHT_PYTHON_SCHEDULE_H_
#define PIPEWRIGHT_PYTHON_SCHEDULE_H_

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "pipewright/ir/diagnostic.h"
#include "pipewright/ir/schedule.h"
#include "pipewright/python/errors.h"
#include "pipewright/schedule/compile/compile.h"
#include "pipewright/schedule/problem/layers.h"
#include "pipewright/schedule/verify/verify.h"
#include "pipewright/schedules/schedule_spec.h"

// A schedule as Python sees it: immutable, so that it cannot change between verifying and use. The
// functions throw ScheduleFailure for errors in a schedule and std::invalid_argument for wrong
// arguments; they need no GIL, and may run on any thread.

namespace pipewright::python {

using Policies = std::map<std::string, std::string>;  // by the names of .plan headers

struct Verdict {
  std::vector<Diagnostic> diagnostics;
  std::vector<schedule::RankCertificate> certificate;  // empty for a compute order
  std::string text;                                    // of all diagnostics
};

struct Change {
  std::vector<std::string> removed, added, moved;
};

class Schedule {
 public:
  // Generates a schedule of the catalogue. `costs` are for those that plan with costs.
  static Schedule make(const std::string& name, const schedules::Shape& shape,
                       const schedule::Costs& costs);
  // Parses a text in the format of the extension of `name`, or else of its first bytes.
  // `slices` and `replicas` are those that it must have, or that a CSV has; 0: not checked, or 1.
  static Schedule read(const std::string& name, const std::string& text, int slices, int replicas);
  explicit Schedule(ir::AnySchedule schedule) : schedule_(std::move(schedule)) {}

  const ir::Schedule& base() const { return ir::schedule_of(schedule_); }
  ir::Level level() const;
  // Requires level kComputeComms.
  const ir::Program& program() const { return std::get<ir::Program>(schedule_); }
  std::vector<std::vector<std::string>> rows() const;  // tokens; "" for an idle slot
  Policies policies() const;                           // recorded in the schedule

  // The same schedule with these stages that recompute and offload, different ones in ascending
  // order.
  Schedule with_stages(std::vector<int> recompute, std::vector<int> offload) const;
  // The same schedule as a program; as a compute order.
  Schedule lower(const Policies& policies) const;
  Schedule compute_order() const;
  // As `pipewright validate`: a compute order is lowered and its program checked as well.
  Verdict verify(const Policies& policies) const;
  // In a file format, or as "table".
  std::string text(const std::string& format) const;
  std::vector<Change> diff(const Schedule& other) const;

  // Verified, for a simulation.
  schedule::CompileResult compiled() const;

 private:
  schedule::CompileResult compile(const Policies& policies, std::optional<ir::Level> level,
                                  schedule::Depth depth) const;

  ir::AnySchedule schedule_;
  std::shared_ptr<const ir::Source> source_;  // the file that it was read from; may be null
};

// Costs from the JSON text of a costs file, which messages call `name`.
schedule::Costs costs_of(const std::string& name, const std::string& text);

// The layers of each stage of a schedule: schedule::cut_of(). The costs must have layers.
std::vector<schedule::LayerRange> cut_of(const schedule::Costs& costs, const Schedule& schedule);

}  // namespace pipewright::python

#endif  // PIPEWRIGHT_PYTHON_SCHEDULE_H_
