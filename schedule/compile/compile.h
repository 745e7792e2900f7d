#ifndef PIPEWRIGHT_SCHEDULE_COMPILE_COMPILE_H_
#define PIPEWRIGHT_SCHEDULE_COMPILE_COMPILE_H_

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
#include "pipewright/ir/text/shape.h"
#include "pipewright/ir/timeline.h"
#include "pipewright/schedule/bounds/schedule_bound.h"
#include "pipewright/schedule/graph/channel_graph.h"
#include "pipewright/schedule/graph/deadlock.h"
#include "pipewright/schedule/lowering/lower.h"
#include "pipewright/schedule/problem/costs.h"
#include "pipewright/schedule/simulate/report.h"
#include "pipewright/schedule/verify/verify.h"
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
// Every error in a user's input is a Diagnostic: wrong names, shapes, policies, files and costs.
// These functions print nothing, do no I/O, and throw only std::bad_alloc, or ir::InternalError for
// a bug. Pure functions, safe to call from any thread. Time is linear in the number of actions;
// memory is that of one program, plus the compute order while it is lowered.

namespace pipewright::schedule {

// How far compile() goes.
enum class Depth {
  kLower,    // reads or generates the schedule, transforms and lowers it; an order that is lowered
             // is verified first at any depth, and with `receives: parity` the result as well
  kVerify,   // and verifies the result
  kCertify,  // and, for a program, computes its certificate
};

// A source that has been read, but not compiled. Its level, shape and recording may decide how to
// compile it: see read_source().
struct ReadSource {
  // A schedule of the catalogue. It is not generated yet, as that may need costs.
  struct Named {
    const schedules::ScheduleSpec* spec;
    schedules::Shape shape;
  };
  // monostate if there are errors.
  std::variant<std::monostate, Named, ir::ParsedSchedule> schedule = {};
  ir::Diagnostics diagnostics = {};
  const ir::Source* file = nullptr;  // null if it is no file; must outlive this

  bool ok() const { return schedule.index() != 0; }
  // These require ok().
  ir::Level level() const;
  int num_stages() const;
  const ir::Recording* recording() const;  // null if there is none
};

struct CompileRequest {
  // One of: a schedule's name or alias, ignoring case ("ZBV"); a .csv, .plan or .json file, whose
  // Source must outlive the call; a schedule in memory; any of them that has been read.
  std::variant<std::string, const ir::Source*, ir::AnySchedule, ReadSource> source = {};

  // For a name, the shape to generate: ranks and microbatches are required, stages default to the
  // schedule's own number. For a file or a schedule in memory, the expected shape; numbers that are
  // 0 are not checked.
  schedules::Shape shape = {};

  // The costs that a schedule is planned for if its name is that of one that plans with costs
  // (ZB-1p, ZB-2p). Others ignore them.
  Costs costs = {};

  // The policies of the passes, and the channel model and capacity that the program is verified
  // under. An unset policy is that of the source, if it records one (CompileResult::overridden);
  // otherwise a pass does what PyTorch does, and channels are the defaults of ir/channel.h.
  ir::Lowering policies = {};

  // The level of the result; nullopt for the level of the source, which is kComputeOnly for a name.
  // A program becomes a compute order by losing its communication (compute_order() in lower.h).
  std::optional<ir::Level> level = ir::Level::kComputeComms;

  Depth depth = Depth::kCertify;

  // Called after each pass; may be empty.
  PassObserver observer = {};
};

// A policy of the source that the request replaces by another value, both as text.
struct OverriddenPolicy {
  std::string_view name;  // "residency"
  std::string recorded;   // "3"
  std::string requested;  // "2"

  friend bool operator==(const OverriddenPolicy&, const OverriddenPolicy&) = default;
};

struct CompileResult {
  // nullopt if there are errors.
  std::optional<ir::AnySchedule> schedule;
  // An error in a file has its place there. An error that first appears in a transformed or lowered
  // schedule has the rank and step in that schedule.
  ir::Diagnostics diagnostics;
  // The recording of a source file that has one. Communication is left out of it with that of the
  // program; nullopt, with lost_recording, if passes changed the order that was recorded.
  std::optional<ir::Recording> recording = {};
  bool lost_recording = false;
  // Per rank; empty unless `schedule` is a verified program and the depth is kCertify.
  std::vector<RankCertificate> certificate;

  // The level of the source, and its number of actions; nullopt and 0 if it could not be read or
  // generated.
  std::optional<ir::Level> source_level;
  size_t source_actions = 0;

  // The checks that ran, whether they found errors or not: "text", "shape", "completeness",
  // "order", "lowering", "data_flow", "residency", "reduction", "channels", and "policies" if a
  // file declares any.
  std::vector<std::string_view> checked;
  // Policies of the source for which the request has another value.
  std::vector<OverriddenPolicy> overridden;
  bool is_verified = false;
  // The schedule that cannot run to its end, if that is among the errors (PW040 or PW042);
  // simulate_blocked() tells how far it gets.
  std::optional<ir::AnySchedule> blocked = {};

  bool ok() const { return schedule.has_value(); }
  // The result as a program. Requires ok() and level kComputeComms.
  const ir::Program& program() const;
};

CompileResult compile(CompileRequest request);

// The first step of compile(): reads and checks the source of a request, for which only `source`
// and `shape` matter.
//
//   ReadSource read = read_source({.source = &file});
//   if (read.ok()) level = read.level();
//   const CompileResult compiled = compile({.source = std::move(read), .level = level});
ReadSource read_source(CompileRequest request);

// The graph of a verified schedule, for slack, critical paths and pictures: which dependencies
// determine when each action runs. A program's is that of its channel model and capacity.
ChannelGraph graph_of(const ir::AnySchedule& schedule);

// The result of a simulation: when each action runs.
struct Simulation {
  Costs costs;  // after the what-if changes
  ir::Timeline timeline;
  Report report;
  // Of the cost of any order of the same work in the same memory; nullopt if it was not asked for.
  std::optional<ScheduleBound> bound;
};

struct SimulateRequest {
  Costs costs = {};
  // Where the costs are in their file (ParsedCosts), for diagnostics; empty if they are not from a
  // file.
  CostPlaces places = {};
  // What-if changes, applied in this order: `scale` multiplies costs by name ({"COMM", 2}; see
  // scalable_costs), `slow` multiplies the durations of one rank's compute and data-parallel
  // actions ({2, 1.5}: rank 2 takes 50% longer).
  std::vector<std::pair<std::string, double>> scale = {};
  std::vector<std::pair<int, double>> slow = {};
  // Memory per rank for the lower bound; it is an error if the schedule needs more. Unset: on each
  // rank as many live activations as the schedule has at its peak.
  MemoryBudget memory = {};
  // Whether to compute the lower bound, which can take longer than the simulation.
  bool with_bound = true;
  // Whether stages that the schedule names offload, which needs their offload_bytes. False for
  // costs of a recording, which says nothing of copies.
  bool with_copies = true;
};

struct SimulateResult {
  std::optional<Simulation> simulation;  // nullopt if there are errors
  ir::Diagnostics diagnostics;           // about the costs, with places in their file

  bool ok() const { return simulation.has_value(); }
};

// The costs after the what-if changes, if they fit a schedule with this placement; otherwise
// nullopt, and errors are added.
// `cut` is the schedule's own, for costs with layers (layers.h). With slices, num_microbatches
// counts them, and the result is sliced().
std::optional<Costs> changed_costs(const SimulateRequest& request, const ir::Placement& placement,
                                   int num_microbatches, const std::vector<int>& cut,
                                   ir::Diagnostics* diagnostics, int slices = 1);

// The same for costs with layers, which stay as they are: for a search for the cut.
std::optional<Costs> changed_layers(const SimulateRequest& request, const ir::Placement& placement,
                                    int num_microbatches, ir::Diagnostics* diagnostics);

// Simulates a compute order with ideal transfers, or a program under its channel model and capacity
// (channel_graph.h). `compiled` must be verified; if it is not ok, its diagnostics are returned.
SimulateResult simulate(const CompileResult& compiled, const SimulateRequest& request);

// The run that `compiled.recording` has recorded, which must be set: its measured times, in the
// unit of the costs if they have one, and the report of these times. Sizes are those of the costs;
// no run offloads.
// As simulate() otherwise; it is also an error if the costs have a unit that is not one of time.
SimulateResult recorded_run(const CompileResult& compiled, const SimulateRequest& request);

// How far a schedule that cannot run to its end gets.
struct BlockedSimulation {
  Costs costs;  // after the what-if changes
  ChannelGraph graph;
  ir::Timeline timeline;  // actions that never run have the interval 0 to 0
  Standstill standstill;
};

// Simulates `compiled.blocked`, which must be set, until nothing can run. nullopt, and errors are
// added, if the costs do not fit it.
std::optional<BlockedSimulation> simulate_blocked(const CompileResult& compiled,
                                                  const SimulateRequest& request,
                                                  ir::Diagnostics* diagnostics);

}  // namespace pipewright::schedule

#endif  // PIPEWRIGHT_SCHEDULE_COMPILE_COMPILE_H_
