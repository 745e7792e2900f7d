#ifndef PIPEWRIGHT_SCHEDULE_COMPILE_H_
#define PIPEWRIGHT_SCHEDULE_COMPILE_H_

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "pipewright/ir/diagnostic.h"
#include "pipewright/ir/lowering.h"
#include "pipewright/ir/schedule.h"
#include "pipewright/ir/source.h"
#include "pipewright/ir/timeline.h"
#include "pipewright/schedule/lowering/lower.h"
#include "pipewright/schedule/simulate/costs.h"
#include "pipewright/schedule/simulate/event_graph.h"
#include "pipewright/schedule/simulate/report.h"
#include "pipewright/schedule/verify/certificate.h"
#include "pipewright/schedules/schedule_spec.h"

// The compiler's front door: from a schedule's name, a file or a schedule in memory to a verified
// program, and from there to a predicted timeline. The command line, train_gpt and the documents
// call this; nothing else assembles the steps.
//
//   const CompileResult zbv = compile({.source = "ZBV", .shape = {.ranks = 4, .microbatches = 8}});
//   if (!zbv.ok()) std::cerr << ir::render(zbv.diagnostics, nullptr, {});
//   execute(zbv.program());  // one action list per rank, proven to run to its end
//
//   const SimulateResult slow = simulate(zbv, {.costs = costs, .slow = {{2, 1.5}}});
//   if (slow.ok()) std::cout << slow.simulation->report.makespan;
//
// Whatever a user can get wrong is a Diagnostic: names, shapes, policies, files and costs. These
// functions print nothing, do no I/O and throw only std::bad_alloc, and ir::InternalError for bugs.
// Pure functions of their arguments, from any thread; linear in the number of actions, and one
// program in memory, plus the order while it is lowered.

namespace pipewright::schedule {

// How far compile() goes.
enum class Depth {
  kLower,    // to the schedule at its level: read or generated, transformed, lowered
  kVerify,   // and verified
  kCertify,  // and, for a program, certified
};

struct CompileRequest {
  // A schedule's name or alias in any case ("ZBV"), the text of a .csv, .plan or .json file, which
  // must outlive the call, or a schedule in memory.
  std::variant<std::string, const ir::Source*, ir::AnySchedule> source = {};

  // For a name, the shape to generate: ranks and microbatches are needed, stages default to the
  // schedule's own. For a file or a schedule in memory, what its shape must be where not 0.
  schedules::Shape shape = {};

  // Policies of the passes, and the channel model and capacity that the program is verified under.
  // What is not set is PyTorch's, or, for the channels of a program that is given, its own.
  ir::Lowering policies = {};

  // The level of the result; none for the source's own, which for a name is kComputeOnly.
  std::optional<ir::Level> level = ir::Level::kComputeComms;

  Depth depth = Depth::kCertify;

  // Called after each pass; may be empty.
  PassObserver observer = {};
};

struct CompileResult {
  // None if there are errors.
  std::optional<ir::AnySchedule> schedule;
  // Errors have their place in the file, unless they concern the program that was made from it.
  ir::Diagnostics diagnostics;
  // Per rank; empty unless `schedule` is a verified program and the depth is kCertify.
  std::vector<RankCertificate> certificate;

  // The source as it was read or generated: its level, none if it could not be, and how many
  // actions it has.
  std::optional<ir::Level> source_level;
  size_t source_actions = 0;

  // What was checked, errors or not: "text", "shape", "completeness", "order", "lowering",
  // "data_flow", "residency", "reduction", "channels".
  std::vector<std::string_view> checked;
  bool is_verified = false;

  bool ok() const { return schedule.has_value(); }
  // The result as a program. Must be ok, at level kComputeComms.
  const ir::Program& program() const;
};

CompileResult compile(CompileRequest request);

// A schedule that was run on costs: when each action runs, and why then.
struct Simulation {
  Costs costs;  // with all changes
  EventGraph graph;
  ir::Timeline timeline;
  Report report;
};

struct SimulateRequest {
  Costs costs = {};
  // Where the costs are in their file (ParsedCosts), for diagnostics; empty if they are from none.
  CostPlaces places = {};
  // What-if changes, in this order: costs by name ({"COMM", 2}: see scalable_costs), and all that a
  // rank does ({2, 1.5}: 50% slower).
  std::vector<std::pair<std::string, double>> scale = {};
  std::vector<std::pair<int, double>> slow = {};
};

struct SimulateResult {
  std::optional<Simulation> simulation;  // none if there are errors
  ir::Diagnostics diagnostics;           // about the costs, with places in their file

  bool ok() const { return simulation.has_value(); }
};

// Runs a compute order with ideal transfers, or a program under its own channels, as event_graph.h
// says. `compiled` must be verified; if it is not ok its diagnostics are passed on.
SimulateResult simulate(const CompileResult& compiled, const SimulateRequest& request);

}  // namespace pipewright::schedule

#endif  // PIPEWRIGHT_SCHEDULE_COMPILE_H_
