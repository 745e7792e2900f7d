#include "pipewright/schedule/simulate/report.h"

#include <algorithm>
#include <array>
#include <limits>
#include <set>
#include <utility>

#include "pipewright/ir/stage_microbatch_table.h"

namespace pipewright::schedule {
namespace {

using ir::Action;
using ir::ActionKind;
using ir::ActionPart;
using ir::Interval;

// Of a stage and microbatch: when its output or input gradient begins and ends to be on the way,
// or, of a program, its RECVs.
class OnTheWay {
 public:
  OnTheWay(const ir::Schedule& schedule, const CostTable& table, const ir::Timeline& timeline)
      : intervals_(schedule.placement, schedule.num_microbatches) {
    // Of an order, what is made is on the way from its end on.
    const ir::StageDependencies dependencies(schedule.placement);
    for (size_t rank = 0; rank < schedule.rows.size(); ++rank) {
      for (size_t step = 0; step < schedule.rows[rank].size(); ++step) {
        const Action& action = schedule.rows[rank][step];
        for (const ActionPart part : action.parts()) {
          const auto& transfer = dependencies.of(part).transfer;
          if (!transfer) continue;
          const bool forward = transfer->receive.kind() == ActionKind::kRecvF;
          Interval& way = at(forward, transfer->receive.stage(), part.microbatch());
          if (ir::is_receive(part.kind())) {
            way = timeline.at(rank, step);
          } else if (ir::is_compute(part.kind()) && way == Interval()) {
            const double end = timeline.at(rank, step).end;
            way = {end, end + (forward ? table.output_transfer(part.stage())
                                       : table.gradient_transfer(part.stage()))};
          }
        }
      }
    }
  }

  // Into a stage.
  Interval& at(bool forward, int stage, int microbatch) {
    return intervals_.at(stage, microbatch)[static_cast<size_t>(forward)];
  }

 private:
  ir::StageMicrobatchTable<std::array<Interval, 2>> intervals_;  // of gradients, of outputs
};

// How much of `gap` two intervals cover.
double covered(const Interval& gap, Interval left, Interval right) {
  if (right.start < left.start) std::swap(left, right);
  const auto clip = [&](double time) { return std::clamp(time, gap.start, gap.end); };
  const double first = clip(left.end) - clip(left.start);
  const double begin = std::max(right.start, left.end);
  return first + std::max(0.0, clip(right.end) - clip(begin));
}

double exposed_of(const ir::Schedule& schedule, const ir::Timeline& timeline, size_t rank,
                  const ir::StageDependencies& dependencies, OnTheWay* ways) {
  double exposed = 0;
  double last_end = std::numeric_limits<double>::infinity();
  for (size_t step = 0; step < schedule.rows[rank].size(); ++step) {
    const Action& action = schedule.rows[rank][step];
    if (!ir::is_compute(action.kind())) continue;
    const Interval gap{last_end, timeline.at(rank, step).start};
    last_end = timeline.at(rank, step).end;
    if (gap.end <= gap.start) continue;
    Interval inputs[2];
    size_t size = 0;
    for (const ActionPart part : action.parts()) {
      for (const ir::StageDependencies::Need& need : dependencies.of(part)) {
        if (need.of_other_rank)
          inputs[size++] =
              ways->at(need.result == ir::Result::kOutput, part.stage(), part.microbatch());
      }
    }
    exposed += covered(gap, inputs[0], inputs[1]);
  }
  return exposed;
}

bool has_kind(const ir::Schedule& schedule, ActionKind kind) {
  for (const ir::Row& row : schedule.rows) {
    for (const Action& action : row) {
      if (action.kind() == kind) return true;
    }
  }
  return false;
}

// Live activations along a row; where no backward is, none is kept.
struct ActivationPeak {
  int peak = 0;
  std::optional<int> step;
};
ActivationPeak activation_peak(const ir::Row& row, bool trains) {
  ActivationPeak most;
  int live = 0;
  for (size_t step = 0; step < row.size(); ++step) {
    int ended = 0;
    for (const ActionPart part : row[step].parts()) {
      if (part.kind() == ActionKind::kForward && ++live > most.peak)
        most = {live, static_cast<int>(step)};
      ended +=
          ir::completes_backward(part.kind()) || (!trains && part.kind() == ActionKind::kForward);
    }
    live -= ended;
  }
  return most;
}

class Bounds {
 public:
  Bounds(const ir::Schedule& schedule, const Costs& costs, const Report& report)
      : placement_(schedule.placement), table_(costs, placement_), report_(report) {
    for (const double scale : costs.microbatch_scale) {
      least_ = std::min(least_, scale);
      most_ = std::max(most_, scale);
    }
    if (costs.microbatch_scale.empty()) least_ = most_ = 1;
    splits_.resize(static_cast<size_t>(placement_.num_stages()));
    for (const ir::Row& row : schedule.rows) {
      for (const Action& action : row) {
        for (const ActionPart part : action.parts()) {
          if (part.kind() == ActionKind::kBackwardInput)
            splits_[static_cast<size_t>(part.stage())] = true;
        }
      }
    }
  }

  // Of the rank of stage 0, from its first F to its last B or I.
  double one_microbatch() const {
    double way = 0, transfers = 0;
    for (int stage = 0; stage < placement_.num_stages(); ++stage) {
      const bool split = splits_[static_cast<size_t>(stage)];
      way += of(ActionKind::kForward, stage) +
             of(split ? ActionKind::kBackwardInput : ActionKind::kBackward, stage);
      transfers += table_.output_transfer(stage) + table_.gradient_transfer(stage);
    }
    return most_ * way + transfers;
  }

  // Of each rank with stages.
  std::vector<double> warm_up() const {
    struct Stages {
      int first = -1, last = -1;
      double longest = 0;  // F
    };
    std::vector<Stages> of_rank(report_.ranks.size());
    for (int stage = 0; stage < placement_.num_stages(); ++stage) {
      Stages& one = of_rank[static_cast<size_t>(placement_.rank_of(stage))];
      if (one.first < 0) one.first = stage;
      one.last = stage;
      one.longest = std::max(one.longest, of(ActionKind::kForward, stage));
    }
    // From a stage to the end, forward, and back to behind it.
    const auto size = static_cast<size_t>(placement_.num_stages());
    std::vector<double> forward(size + 1), backward(size + 1), transfers_out(size + 1),
        transfers_back(size + 1);
    for (size_t stage = size; stage-- > 0;) {
      const int at = static_cast<int>(stage);
      forward[stage] = forward[stage + 1] + of(ActionKind::kForward, at);
      backward[stage] = backward[stage + 1] + of(ActionKind::kBackwardInput, at);
      transfers_out[stage] = transfers_out[stage + 1] + table_.output_transfer(at);
      transfers_back[stage] = transfers_back[stage + 1] + table_.gradient_transfer(at);
    }
    std::vector<double> bounds;
    for (size_t rank = 0; rank < of_rank.size(); ++rank) {
      const Stages& one = of_rank[rank];
      if (one.first < 0) continue;
      const auto from = static_cast<size_t>(one.first), behind = static_cast<size_t>(one.last) + 1;
      const double way = least_ * (forward[from] + backward[behind]) + transfers_out[from] +
                         transfers_back[behind];
      const RankReport& report = report_.ranks[rank];
      bounds.push_back(report.busy +
                       std::max(0.0, way - most_ * one.longest * report.peak_activations));
    }
    return bounds;
  }

 private:
  double of(ActionKind kind, int stage) const { return table_.of_kind(kind, stage); }

  const ir::Placement& placement_;
  CostTable table_;
  const Report& report_;
  std::vector<bool> splits_;                                           // by stage
  double least_ = std::numeric_limits<double>::infinity(), most_ = 0;  // of a microbatch's scale
};

}  // namespace

double LowerBounds::largest() const { return std::max({busiest_rank, one_microbatch, warm_up}); }

Report report_on(const ir::Schedule& schedule, const Costs& costs, const ir::Timeline& timeline) {
  Report report;
  const CostTable table(costs, schedule.placement);
  const ir::StageDependencies dependencies(schedule.placement);
  const bool has_backward = ir::has_backward(schedule);
  const MemoryModel memory(schedule, costs);
  OnTheWay ways(schedule, table, timeline);
  for (size_t rank = 0; rank < schedule.rows.size(); ++rank) {
    const ir::Row& row = schedule.rows[rank];
    RankReport one;
    one.start = std::numeric_limits<double>::infinity();
    for (size_t step = 0; step < row.size(); ++step) {
      if (row[step].is_idle()) continue;
      const Interval& interval = timeline.at(rank, step);
      if (ir::is_transfer(row[step].kind())) continue;
      // One that takes no time keeps no rank.
      if (interval.duration() > 0 || ir::is_compute(row[step].kind())) {
        one.start = std::min(one.start, interval.start);
        one.end = std::max(one.end, interval.end);
      }
      if (ir::is_compute(row[step].kind())) one.busy += interval.duration();
    }
    if (one.start > one.end) one.start = one.end = 0;
    one.exposed_communication = exposed_of(schedule, timeline, rank, dependencies, &ways);
    const ActivationPeak peak = activation_peak(row, has_backward);
    one.peak_activations = peak.peak;
    one.peak_activations_step = peak.step;
    if (costs.has_sizes()) {
      for (const MemorySample& sample : memory.along(timeline, rank)) {
        if (sample.bytes > one.peak_bytes.bytes) one.peak_bytes = {sample.bytes, sample.step};
      }
    }
    report.cost = std::max(report.cost, one.span());
    report.bounds.busiest_rank = std::max(report.bounds.busiest_rank, one.busy);
    report.ranks.push_back(one);
  }
  report.makespan = ir::span_of(schedule.rows, timeline).duration();
  if (report.cost > 0)
    report.bubble_rate = (report.cost - report.bounds.busiest_rank) / report.cost;
  if (has_backward) {
    const Bounds bounds(schedule, costs, report);
    report.bounds.one_microbatch = bounds.one_microbatch();
    for (const double bound : bounds.warm_up())
      report.bounds.warm_up = std::max(report.bounds.warm_up, bound);
  }
  return report;
}

MemoryModel::MemoryModel(const ir::Schedule& schedule, const Costs& costs)
    : schedule_(schedule),
      costs_(costs),
      dependencies_(schedule.placement),
      has_backward_(ir::has_backward(schedule)),
      receives_(has_kind(schedule, ActionKind::kRecvF) || has_kind(schedule, ActionKind::kRecvB)),
      held_throughout_(schedule.rows.size()) {
  if (has_kind(schedule, ActionKind::kUnshard)) return;
  for (int stage = 0; stage < schedule.placement.num_stages(); ++stage)
    held_throughout_[static_cast<size_t>(schedule.placement.rank_of(stage))] +=
        costs.parameter_bytes.at(stage);
}

std::vector<MemorySample> MemoryModel::along(const ir::Timeline& timeline, size_t rank) const {
  std::vector<MemorySample> changes;  // of what is held; sums later
  std::set<int> has_gradients;        // stages
  double held = held_throughout_[rank];
  const ir::Row& row = schedule_.rows[rank];
  for (size_t index = 0; index < row.size(); ++index) {
    if (row[index].is_idle()) continue;
    const int step = static_cast<int>(index);
    MemorySample begins{timeline.at(rank, index).start, step, 0, 0};
    MemorySample ends{timeline.at(rank, index).end, step, 0, 0};
    for (const ActionPart part : row[index].parts()) {
      const int stage = part.stage();
      const double activation = costs_.activation_bytes.at(stage);
      const double for_weight = costs_.weight_input_bytes.at(stage);
      const auto add_gradients = [&] {
        if (has_gradients.insert(stage).second) begins.bytes += costs_.gradient_bytes.at(stage);
      };
      switch (part.kind()) {
        case ActionKind::kForward:
          ++begins.activations;
          begins.bytes += activation;
          if (has_backward_) break;
          --ends.activations;
          ends.bytes -= activation;
          break;
        case ActionKind::kBackward:
          add_gradients();
          --ends.activations;
          ends.bytes -= activation;
          break;
        case ActionKind::kBackwardInput:
          ends.bytes += for_weight - activation;
          break;
        case ActionKind::kBackwardWeight:
          add_gradients();
          --ends.activations;
          ends.bytes -= for_weight;
          break;
        case ActionKind::kUnshard:
          begins.bytes += costs_.parameter_bytes.at(stage);
          break;
        case ActionKind::kReshard:
          ends.bytes -= costs_.parameter_bytes.at(stage);
          break;
        case ActionKind::kReduceGrad:
          if (has_gradients.erase(stage) > 0) ends.bytes -= costs_.gradient_bytes.at(stage);
          break;
        case ActionKind::kRecvF:
          begins.bytes += costs_.output_bytes.at(stage - 1);
          break;
        case ActionKind::kRecvB:
          begins.bytes += costs_.input_gradient_bytes.at(stage + 1);
          break;
        case ActionKind::kSendF:
        case ActionKind::kSendB:
        case ActionKind::kIdle:
        case ActionKind::kOverlapFB:
          break;
      }
      if (!receives_ || !ir::is_compute(part.kind())) continue;
      // What was received goes with the end of what used it.
      for (const ir::StageDependencies::Need& need : dependencies_.of(part)) {
        if (!need.of_other_rank) continue;
        ends.bytes -= need.result == ir::Result::kOutput
                          ? costs_.output_bytes.at(need.stage)
                          : costs_.input_gradient_bytes.at(need.stage);
      }
    }
    changes.push_back(begins);
    changes.push_back(ends);
  }
  // Where times are equal, what ends goes before what begins after it in the row.
  std::ranges::stable_sort(changes, {}, &MemorySample::time);
  int activations = 0;
  for (MemorySample& sample : changes) {
    sample.activations = activations += sample.activations;
    sample.bytes = held += sample.bytes;
  }
  return changes;
}

}  // namespace pipewright::schedule
