#include "pipewright/schedule/bounds/schedule_bound.h"

#include <algorithm>
#include <cmath>

#include "pipewright/schedule/bounds/bounds.h"
#include "pipewright/schedule/simulate/memory_model.h"

namespace pipewright::schedule {
namespace {

// A change of the memory in use.
struct Change {
  double time;  // or the step, if times are not known
  Memory amount;
  int step;
};

// The changes on a rank: copies to the host, actions in the order of the row, copies back.
std::vector<Change> changes_on(const ir::Schedule& schedule, const Problem& problem,
                               const CopyPlan* copies, const ir::Timeline* timeline, size_t rank) {
  std::vector<Change> changes;
  const ir::Row& row = schedule.rows[rank];
  const std::vector<Copy> run = copies == nullptr || timeline == nullptr
                                    ? std::vector<Copy>()
                                    : copies_in(schedule, *copies, *timeline, rank, row.size());
  for (const Copy& copy : run) {
    if (!copy.is_reload)
      changes.push_back(
          {copy.time.end, -problem.work(copy.stage).offloaded, static_cast<int>(copy.step)});
  }
  for (size_t index = 0; index < row.size(); ++index) {
    if (!ir::is_compute(row[index].kind())) continue;
    const int step = static_cast<int>(index);
    const double now = static_cast<double>(index);
    const ir::Interval time =
        timeline != nullptr ? timeline->at(rank, index) : ir::Interval{now, now};
    for (const ir::ActionPart part : row[index].parts()) {
      const StageWork& work = problem.work(part.stage());
      const Memory whole = work.activation + work.offloaded;
      if (part.kind() == ir::ActionKind::kForward) changes.push_back({time.start, whole, step});
      if (ir::gives_input_gradient(part.kind())) {
        changes.push_back({time.start, work.recomputed, step});
        changes.push_back({time.end, -work.recomputed - whole, step});
      }
      if (part.kind() == ir::ActionKind::kBackwardInput) changes.back().amount += work.weight_input;
      if (part.kind() == ir::ActionKind::kBackwardWeight)
        changes.push_back({time.end, -work.weight_input, step});
    }
  }
  for (const Copy& copy : run) {
    if (copy.is_reload)
      changes.push_back(
          {copy.takes, problem.work(copy.stage).offloaded, static_cast<int>(copy.step)});
  }
  return changes;
}

MemoryPeak peak_of(std::vector<Change> changes, Memory limit) {
  std::ranges::stable_sort(changes, {}, &Change::time);
  MemoryPeak peak;
  Memory used = 0;
  for (const Change& change : changes) {
    used += change.amount;
    if (used > peak.amount) {
      peak.amount = used;
      peak.step = change.step;
    }
    if (change.amount > 0 && used > limit) peak.excess += used - limit;
  }
  return peak;
}

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

Problem problem_of(const ir::Schedule& schedule, const Costs& costs, const Report& report,
                   const MemoryBudget& memory) {
  Problem problem = make_problem(schedule.placement, schedule.num_microbatches, costs, memory);
  const bool has_backward = ir::has_backward(schedule);
  const std::vector<bool> is_split = split_stages(schedule);
  for (size_t one = 0; one < problem.stages.size(); ++one) {
    const int stage = schedule.placement.stage_of_instance(static_cast<int>(one));
    if (is_split[static_cast<size_t>(stage)]) continue;
    StageWork& work = problem.stages[one];
    work.backward_input = has_backward ? work.backward_input + work.backward_weight : 0;
    work.backward_weight = work.weight_input = 0;
  }
  for (size_t rank = 0; !memory.is_set() && rank < report.ranks.size(); ++rank)
    problem.memory_limits[rank] = report.ranks[rank].peak_activations.amount;
  return problem;
}

std::vector<MemoryPeak> memory_peaks(const ir::Schedule& schedule, const Problem& problem,
                                     const CopyPlan* copies, const ir::Timeline* timeline) {
  std::vector<MemoryPeak> peaks;
  for (size_t rank = 0; rank < schedule.rows.size(); ++rank)
    peaks.push_back(peak_of(changes_on(schedule, problem, copies, timeline, rank),
                            problem.memory_limits[rank]));
  return peaks;
}

ScheduleBound bound_of(const ir::Schedule& schedule, const Costs& costs, const Report& report,
                       const MemoryBudget& memory) {
  const Problem problem = allowing_whole_backwards(problem_of(schedule, costs, report, memory));
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
  for (const Memory limit : problem.memory_limits)
    result.memory_limits.push_back(problem.size(limit));
  for (int stage = 0; stage < problem.num_stages(); ++stage) {
    const StageWork& work = problem.work(stage);  // the same for all replicas
    result.activations.push_back(problem.size(work.activation));
    result.weight_inputs.push_back(problem.size(work.weight_input));
    result.recomputed.push_back(problem.size(work.recomputed));
  }
  if (std::abs(result.value - report.cost) <= 1e-9 * report.cost) result.value = report.cost;
  return result;
}

}  // namespace pipewright::schedule
