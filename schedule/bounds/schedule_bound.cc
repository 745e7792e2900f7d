#include "pipewright/schedule/bounds/schedule_bound.h"

#include <cmath>

#include "pipewright/schedule/bounds/bounds.h"

namespace pipewright::schedule {
namespace {

// By stage: whether any of its backwards is split into I and W.
std::vector<bool> split_stages(const ir::Schedule& schedule) {
  std::vector<bool> is_split(static_cast<size_t>(schedule.placement.num_stages()));
  for (const ir::Row& row : schedule.rows) {
    for (const ir::Action& action : row) {
      for (const ir::ActionPart part : action.parts()) {
        if (part.kind() == ir::ActionKind::kBackwardInput)
          is_split[static_cast<size_t>(part.stage())] = true;
      }
    }
  }
  return is_split;
}

}  // namespace

search::Problem problem_of(const ir::Schedule& schedule, const Costs& costs, const Report& report,
                           const search::MemoryBudget& memory) {
  search::Problem problem =
      search::make_problem(schedule.placement, schedule.num_microbatches, costs, memory);
  const bool has_backward = ir::has_backward(schedule);
  const std::vector<bool> is_split = split_stages(schedule);
  for (size_t stage = 0; stage < problem.stages.size(); ++stage) {
    if (is_split[stage]) continue;
    search::StageWork& work = problem.stages[stage];
    work.backward_input = has_backward ? work.backward_input + work.backward_weight : 0;
    work.backward_weight = work.weight_input = 0;
  }
  for (size_t rank = 0; !memory.is_set() && rank < report.ranks.size(); ++rank)
    problem.memory_limits[rank] = report.ranks[rank].peak_activations.amount;
  return problem;
}

std::vector<MemoryPeak> memory_peaks(const ir::Schedule& schedule, const search::Problem& problem) {
  std::vector<MemoryPeak> peaks;
  for (const ir::Row& row : schedule.rows) {
    MemoryPeak& peak = peaks.emplace_back();
    search::Memory used = 0;
    for (size_t step = 0; step < row.size(); ++step) {
      for (const ir::ActionPart part : row[step].parts()) {
        if (!ir::is_compute(part.kind())) continue;
        const search::StageWork& work = problem.work(part.stage());
        const bool is_backward = part.kind() == ir::ActionKind::kBackward ||
                                 part.kind() == ir::ActionKind::kBackwardInput;
        if (is_backward && used + work.recomputed > peak.amount)
          peak = {used + work.recomputed, static_cast<int>(step)};
        if (part.kind() == ir::ActionKind::kForward) used += work.activation;
        if (part.kind() == ir::ActionKind::kBackward) used -= work.activation;
        if (part.kind() == ir::ActionKind::kBackwardInput)
          used += work.weight_input - work.activation;
        if (part.kind() == ir::ActionKind::kBackwardWeight) used -= work.weight_input;
        if (used > peak.amount) peak = {used, static_cast<int>(step)};
      }
    }
  }
  return peaks;
}

ScheduleBound bound_of(const ir::Schedule& schedule, const Costs& costs, const Report& report,
                       const search::MemoryBudget& memory) {
  const search::Problem problem =
      allowing_whole_backwards(problem_of(schedule, costs, report, memory));
  const Bound bound = ir::has_backward(schedule) ? lower_bound(problem) : work_bound(problem);
  ScheduleBound result{.value = problem.time(bound.value),
                       .name = bound.name,
                       .rank = bound.rank,
                       .other = bound.other,
                       .terms = {},
                       .memory_limits = {},
                       .activations = {},
                       .weight_inputs = {},
                       .recomputed = {}};
  for (const BoundTerm& term : bound.terms)
    result.terms.emplace_back(term.name, problem.time(term.value));
  for (const search::Memory limit : problem.memory_limits)
    result.memory_limits.push_back(problem.size(limit));
  for (const search::StageWork& work : problem.stages) {
    result.activations.push_back(problem.size(work.activation));
    result.weight_inputs.push_back(problem.size(work.weight_input));
    result.recomputed.push_back(problem.size(work.recomputed));
  }
  if (std::abs(result.value - report.cost) <= 1e-9 * report.cost) result.value = report.cost;
  return result;
}

}  // namespace pipewright::schedule
