#include "pipewright/schedule/simulate/drift.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>
#include <limits>
#include <map>
#include <tuple>

#include "pipewright/schedule/simulate/recorded_costs.h"

namespace pipewright::schedule {
namespace {

using ir::Action;
using ir::ActionKind;

// Calls `visit(rank, step, action)` for each action.
template <typename Visit>
void for_each_action(const ir::Schedule& schedule, const Visit& visit) {
  for (size_t rank = 0; rank < schedule.rows.size(); ++rank) {
    for (size_t step = 0; step < schedule.rows[rank].size(); ++step) {
      const Action& action = schedule.rows[rank][step];
      if (!action.is_idle()) visit(rank, step, action);
    }
  }
}

// How long the actions of a run took, as far as it tells.
struct Duration {
  double time = 0;
  bool is_bound = false;  // it took at most `time`
};
using Durations = std::vector<Duration>;  // by cell

Durations durations_of(const ir::Timeline& timeline) {
  Durations durations;
  for (size_t cell = 0; cell < timeline.size(); ++cell)
    durations.push_back({timeline[cell].duration()});
  return durations;
}

// A recorded SEND lasts until its receiver looks.
Durations recorded_durations_of(const ir::Schedule& schedule, const ir::Timeline& recorded) {
  Durations durations = durations_of(recorded);
  const RecordedTransfers transfers(schedule, recorded);
  for (const RecordedTransfer& transfer : transfers.all())
    durations[transfer.send] = {transfer.duration(), !transfer.is_known()};
  return durations;
}

// Two runs of a schedule.
struct Runs {
  const ir::Schedule& schedule;
  const ir::Timeline& timeline;  // of either, for its cells
  Durations predicted, measured;
};

// The sum of the durations added to it, or their minimum, where any that is known goes before all
// that are bounds.
void add(const Duration& one, bool is_send, bool is_first, double* time, bool* is_bound) {
  if (!is_send) {
    *time += one.time;
  } else if (is_first || (*is_bound && !one.is_bound)) {
    *time = one.time;
    *is_bound = one.is_bound;
  } else if (one.is_bound == *is_bound) {
    *time = std::min(*time, one.time);
  }
}

std::vector<Drift::Group> groups_of(const Runs& runs) {
  std::map<std::tuple<ActionKind, int, int>, Drift::Group> groups;
  for_each_action(runs.schedule, [&](size_t rank, size_t step, const Action& action) {
    const ActionKind kind = action.kind();
    if (ir::is_receive(kind)) return;
    const bool sends = ir::is_send(kind);
    const ir::ActionPart part = action.parts()[0];
    const int to =
        sends ? runs.schedule.placement.rank_of(receiving_stage(part), part.microbatch()) : -1;
    const int from = static_cast<int>(rank);
    Drift::Group& group =
        groups.try_emplace({kind, from, to}, Drift::Group{kind, from, to}).first->second;
    const size_t cell = runs.timeline.index(rank, step);
    const bool is_first = group.actions == 0;
    add(runs.predicted[cell], sends, is_first, &group.predicted, &group.predicted_is_bound);
    add(runs.measured[cell], sends, is_first, &group.measured, &group.measured_is_bound);
    ++group.actions;
  });
  std::vector<Drift::Group> result;
  for (auto& [key, group] : groups) {
    if (!ir::is_send(group.kind)) {
      group.predicted /= static_cast<double>(group.actions);
      group.measured /= static_cast<double>(group.actions);
    }
    result.push_back(group);
  }
  return result;
}

std::vector<Drift::Group> slow_links_of(const std::vector<Drift::Group>& groups, double makespan) {
  const auto excess = [](const Drift::Group& link) {
    return static_cast<double>(link.actions) * (link.measured - link.predicted);
  };
  std::vector<Drift::Group> slow;
  std::ranges::copy_if(groups, std::back_inserter(slow), [&](const Drift::Group& group) {
    return ir::is_send(group.kind) && !group.predicted_is_bound && !group.measured_is_bound &&
           group.predicted > 0 && group.measured >= kLinkSlowness * group.predicted &&
           excess(group) >= kLinkShare * makespan;
  });
  std::ranges::stable_sort(slow, std::ranges::greater(), excess);
  return slow;
}

std::vector<Drift::Outlier> outliers_of(const Runs& runs) {
  constexpr size_t kMost = 10;
  const double scale = ir::span_of(runs.schedule.rows, runs.timeline).duration();
  std::vector<Drift::Outlier> all;
  for_each_action(runs.schedule, [&](size_t rank, size_t step, const Action& action) {
    if (ir::is_receive(action.kind())) return;
    const size_t cell = runs.timeline.index(rank, step);
    const Duration &before = runs.predicted[cell], &after = runs.measured[cell];
    if (before.is_bound || after.is_bound) return;
    if (ir::without_rounding(after.time - before.time, scale) != 0)
      all.push_back({static_cast<int>(rank), static_cast<int>(step), before.time, after.time});
  });
  const auto last = all.begin() + static_cast<std::ptrdiff_t>(std::min(all.size(), kMost));
  std::partial_sort(all.begin(), last, all.end(),
                    [](const Drift::Outlier& one, const Drift::Outlier& other) {
                      const auto key = [](const Drift::Outlier& of) {
                        return std::tuple(-std::abs(of.measured - of.predicted), of.rank, of.step);
                      };
                      return key(one) < key(other);
                    });
  all.erase(last, all.end());
  return all;
}

// By rank: how many times as long its compute takes as expected.
std::vector<double> slowness_of(const ir::Schedule& schedule, const ir::Timeline& predicted,
                                const ir::Timeline& measured, Baseline baseline) {
  const bool has_prediction = baseline != Baseline::kMedianOfKind;
  std::map<ActionKind, std::vector<double>> durations;
  for_each_action(schedule, [&](size_t rank, size_t step, const Action& action) {
    durations[action.kind()].push_back(measured.at(rank, step).duration());
  });
  std::map<ActionKind, double> medians;
  for (auto& [kind, of_kind] : durations) medians[kind] = lower_median(std::move(of_kind));

  // The median over the actions of a rank: a single late action makes no straggler. Without a
  // prediction, the least of the medians of its stages: a slow rank is slow in all of them, and
  // otherwise one of them has more work.
  std::vector<std::map<int, std::vector<double>>> ratios(schedule.rows.size());
  for_each_action(schedule, [&](size_t rank, size_t step, const Action& action) {
    if (!ir::is_compute(action.kind())) return;
    const double expected =
        has_prediction ? predicted.at(rank, step).duration() : medians[action.kind()];
    if (expected <= 0) return;
    const int stage = has_prediction ? 0 : action.parts()[0].stage();
    ratios[rank][stage].push_back(measured.at(rank, step).duration() / expected);
  });
  std::vector<double> slowness;
  for (auto& of_rank : ratios) {
    double least = std::numeric_limits<double>::infinity();
    for (auto& [stage, of_stage] : of_rank)
      least = std::min(least, lower_median(std::move(of_stage)));
    slowness.push_back(of_rank.empty() ? 1 : least);
  }
  const double median = lower_median(slowness);
  for (double& one : slowness) one = median > 0 ? one / median : 1;
  return slowness;
}

}  // namespace

Drift drift_of(const ir::Schedule& schedule, const ir::Timeline& predicted,
               const ir::Timeline& measured, Baseline baseline) {
  const Runs runs{schedule, measured,
                  baseline == Baseline::kEarlierRun ? recorded_durations_of(schedule, predicted)
                                                    : durations_of(predicted),
                  recorded_durations_of(schedule, measured)};
  Drift drift{groups_of(runs),
              outliers_of(runs),
              slowness_of(schedule, predicted, measured, baseline),
              std::nullopt,
              {}};
  const auto slowest = std::ranges::max_element(drift.slowness);
  if (slowest != drift.slowness.end() && *slowest >= kStragglerSlowness)
    drift.straggler = static_cast<int>(slowest - drift.slowness.begin());
  drift.slow_links = slow_links_of(drift.groups, ir::span_of(schedule.rows, measured).duration());
  return drift;
}

}  // namespace pipewright::schedule
