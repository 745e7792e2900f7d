// The half of compile.h that simulates what the other half, compile.cc, has compiled.
#include <fmt/format.h>

#include "pipewright/ir/check.h"
#include "pipewright/ir/printable.h"
#include "pipewright/schedule/compile/compile.h"
#include "pipewright/schedule/problem/layers.h"
#include "pipewright/schedule/problem/problem.h"
#include "pipewright/schedule/simulate/memory_model.h"
#include "pipewright/schedule/simulate/simulate.h"
#include "pipewright/schedule/verify/verify.h"

namespace pipewright::schedule {
namespace {

bool change_costs(const SimulateRequest& request, const ir::Placement& placement, Costs* costs,
                  ir::Diagnostics* diagnostics) {
  const size_t before = diagnostics->total();
  const auto is_factor = [&](const std::string& of, double factor) {
    if (is_cost(factor)) return true;
    diagnostics->error(ir::Rule::kBadValue, fmt::format("a factor for {}: expected {}, got {}", of,
                                                        cost_in_words(), factor));
    return false;
  };
  for (const auto& [name, factor] : request.scale) {
    if (!is_factor(name, factor) || scale_cost(name, factor, costs)) continue;
    diagnostics
        ->error(ir::Rule::kUnknownKey,
                fmt::format("there is no cost {} to scale", ir::backticked(name)))
        .help = fmt::format("costs to scale are {}", fmt::join(scalable_costs(), ", "));
  }
  for (const auto& [rank, factor] : request.slow) {
    if (!is_factor(fmt::format("rank {}", rank), factor)) continue;
    if (rank < 0 || rank >= placement.num_ranks()) {
      diagnostics->error(ir::Rule::kCostsMismatch,
                         fmt::format("there is no rank {} to slow down: expected 0 to {}, got {}",
                                     rank, placement.num_ranks() - 1, rank));
    } else {
      slow_rank(rank, factor, placement, costs);
    }
  }
  return diagnostics->total() == before;
}

// Checks that a schedule keeps to the memory of a problem, which is this budget.
bool check_memory(const ir::Schedule& schedule, const Problem& problem, const Costs& costs,
                  const ir::Timeline& timeline, const MemoryBudget& memory,
                  ir::Diagnostics* diagnostics) {
  if (!ir::has_backward(schedule)) return true;
  const size_t before = diagnostics->total();
  const CopyPlan copies(schedule, costs);
  const std::vector<MemoryPeak> peaks = memory_peaks(schedule, problem, &copies, &timeline);
  for (int rank = 0; rank < problem.num_ranks(); ++rank) {
    const MemoryPeak& peak = peaks[static_cast<size_t>(rank)];
    if (peak.amount <= problem.memory_limit(rank)) continue;
    const std::string amounts =
        memory.bytes ? fmt::format("{:.0f} bytes, got {:.0f}", memory.bytes->at(rank),
                                   memory.bytes->at(rank) +
                                       problem.size(peak.amount - problem.memory_limit(rank)))
                     : fmt::format("{:.6g} activations, got {:.6g}", memory.activations->at(rank),
                                   static_cast<double>(peak.amount) /
                                       static_cast<double>(problem.activation_of(rank)));
    diagnostics->error(
        ir::Rule::kMemoryExceeded,
        fmt::format("rank {}, step {}: expected at most {}", rank, peak.step, amounts));
  }
  return diagnostics->total() == before;
}

ir::Timeline times_of(const ir::AnySchedule& schedule, const Costs& costs) {
  if (const auto* order = std::get_if<ir::ComputeOrder>(&schedule)) return simulate(*order, costs);
  const auto& program = std::get<ir::Program>(schedule);
  const VerifyOptions options = options_of(program.lowering);
  return simulate(program, options.channels, options.capacity, costs);
}

// simulate(), with the copies of stages that offload.
ir::Timeline timeline_of(const ir::AnySchedule& any, const Costs& costs) {
  const ir::Schedule& schedule = ir::schedule_of(any);
  ir::Timeline timeline = times_of(any, costs);
  const CopyPlan plan(schedule, costs);
  for (size_t rank = 0; rank < schedule.rows.size(); ++rank) {
    const ir::Row& row = schedule.rows[rank];
    for (const Copy& copy : copies_in(schedule, plan, timeline, rank, row.size()))
      timeline.add({static_cast<uint32_t>(rank),
                    copy.is_reload ? ir::WorkTrack::kToDevice : ir::WorkTrack::kToHost,
                    {ir::ActionKind::kForward, copy.stage, copy.microbatch},
                    copy.time});
  }
  return timeline;
}

}  // namespace

ChannelGraph graph_of(const ir::AnySchedule& schedule) {
  if (const auto* order = std::get_if<ir::ComputeOrder>(&schedule))
    return ChannelGraph::of_order(*order);
  const auto& program = std::get<ir::Program>(schedule);
  const VerifyOptions options = options_of(program.lowering);
  return ChannelGraph::of_program(program, options.channels, options.capacity);
}

std::optional<Costs> changed_costs(const SimulateRequest& request, const ir::Placement& placement,
                                   int num_microbatches, const std::vector<int>& cut,
                                   ir::Diagnostics* diagnostics, int slices) {
  const std::optional<Costs> of_stages =
      cut_layers(request.costs, cut, request.places, placement.num_stages(), diagnostics);
  if (!of_stages) return std::nullopt;
  Costs costs = *of_stages;
  const bool fits =
      check_costs(costs, request.places, placement, num_microbatches / slices, diagnostics, slices);
  const bool changed = change_costs(request, placement, &costs, diagnostics);
  if (!fits || !changed || !check_factors(costs, placement, diagnostics)) return std::nullopt;
  return sliced(std::move(costs), slices, num_microbatches);
}

std::optional<Costs> changed_layers(const SimulateRequest& request, const ir::Placement& placement,
                                    int num_microbatches, ir::Diagnostics* diagnostics) {
  if (!changed_costs(request, placement, num_microbatches, {}, diagnostics)) return std::nullopt;
  Costs costs = request.costs;
  change_costs(request, placement, &costs, diagnostics);
  return costs;
}

namespace {

// The costs as the stages of a schedule recompute and offload.
std::optional<Costs> costs_of(const ir::Schedule& schedule, const SimulateRequest& request,
                              ir::Diagnostics* diagnostics) {
  const int num_stages = schedule.placement.num_stages();
  std::optional<Costs> costs = changed_costs(request, schedule.placement, schedule.num_microbatches,
                                             schedule.cut, diagnostics, schedule.slices);
  if (!costs) return std::nullopt;
  const std::vector<int> offload = request.with_copies ? schedule.offload : std::vector<int>();
  for (const int stage : offload) {
    if (costs->offload_bytes.at(stage) > 0) continue;
    diagnostics->error(
        ir::Rule::kCostsMismatch,
        fmt::format("`offload_bytes`: expected a size above 0 for stage {}, which offloads, got 0",
                    stage));
    return std::nullopt;
  }
  return costs_with({schedule.recompute, offload}, *costs, num_stages);
}

// simulate(), or with a timeline that has been measured, in the unit of the costs.
SimulateResult run(const CompileResult& compiled, const SimulateRequest& request,
                   const ir::Timeline* measured) {
  SimulateResult result;
  if (!compiled.ok()) {
    result.diagnostics = compiled.diagnostics;
    return result;
  }
  PW_CHECK(compiled.is_verified, "what is simulated is verified: Depth::kVerify or more");
  const ir::Schedule& schedule = ir::schedule_of(*compiled.schedule);
  const ir::Placement& placement = schedule.placement;
  std::optional<Costs> costs = costs_of(schedule, request, &result.diagnostics);
  if (!costs) return result;
  const MemoryBudget memory = budget_of(request.memory, *costs);
  if (!check_budget(memory, placement.num_ranks(), &result.diagnostics)) return result;
  ir::Timeline timeline = measured != nullptr ? *measured : timeline_of(*compiled.schedule, *costs);
  Report report = report_on(schedule, *costs, timeline);
  std::optional<ScheduleBound> bound;
  if (request.with_bound) bound = bound_of(schedule, *costs, report, memory);
  if (memory.is_set() && !check_memory(schedule, problem_of(schedule, *costs, report, memory),
                                       *costs, timeline, memory, &result.diagnostics))
    return result;
  result.simulation =
      Simulation{std::move(*costs), std::move(timeline), std::move(report), std::move(bound)};
  return result;
}

}  // namespace

SimulateResult simulate(const CompileResult& compiled, const SimulateRequest& request) {
  return run(compiled, request, nullptr);
}

SimulateResult recorded_run(const CompileResult& compiled, const SimulateRequest& request) {
  PW_CHECK(compiled.recording, "the source has a recording");
  const ir::Recording& recording = *compiled.recording;
  SimulateRequest in_unit = request;
  in_unit.with_copies = false;
  std::string& unit = in_unit.costs.unit;
  if (unit.empty()) unit = recording.unit;
  const auto seconds = ir::seconds_per(unit);
  if (!seconds) {
    SimulateResult result;
    result.diagnostics.error(ir::Rule::kCostsMismatch,
                             fmt::format("`unit`: expected one that the recording's {} converts "
                                         "to (s, ms, us or ns), got {}",
                                         recording.unit, ir::backticked(unit)));
    return result;
  }
  if (unit == recording.unit) return run(compiled, in_unit, &recording.timeline);
  const double factor = *ir::seconds_per(recording.unit) / *seconds;
  ir::Timeline timeline = recording.timeline;
  timeline.change_times([&](double time) { return time * factor; });
  return run(compiled, in_unit, &timeline);
}

std::optional<BlockedSimulation> simulate_blocked(const CompileResult& compiled,
                                                  const SimulateRequest& request,
                                                  ir::Diagnostics* diagnostics) {
  PW_CHECK(compiled.blocked, "the schedule cannot run to its end");
  const ir::Schedule& schedule = ir::schedule_of(*compiled.blocked);
  std::optional<Costs> costs = costs_of(schedule, request, diagnostics);
  if (!costs) return std::nullopt;
  ChannelGraph graph = graph_of(*compiled.blocked);
  ir::Timeline timeline = simulate(graph, schedule, *costs);
  Standstill standstill = standstill_of(graph, schedule);
  return BlockedSimulation{std::move(*costs), std::move(graph), std::move(timeline),
                           std::move(standstill)};
}

}  // namespace pipewright::schedule
