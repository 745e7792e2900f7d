#include "pipewright/schedule/simulate/memory_model.h"

#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <utility>

namespace pipewright::schedule {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Plans the copies of one rank. Computes are numbered along its row, without other actions.
class RowPlan {
 public:
  RowPlan(const ir::Row& row, size_t rank, const Costs& costs, const CostTable& table)
      : costs_(costs), num_steps_(row.size()) {
    double begin = 0;
    for (size_t step = 0; step < row.size(); ++step) {
      if (!ir::is_compute(row[step].kind())) continue;
      for (const ir::ActionPart part : row[step].parts()) add(part);
      steps_.push_back(step);
      begins_.push_back(begin);
      begin += table.duration(row[step], rank);
    }
  }

  RankCopies copies() {
    place_reloads();
    // At one place, copies to the host come first: their F is the compute before it.
    std::vector<std::pair<size_t, Copy>> placed;
    for (size_t number = 0; number < trips_.size(); ++number) {
      const Trip& trip = trips_[number];
      placed.emplace_back(trip.forward + 1, Copy{.is_reload = false,
                                                 .stage = trip.stage,
                                                 .microbatch = trip.microbatch,
                                                 .posted_before = steps_[trip.forward + 1],
                                                 .step = steps_[trip.forward],
                                                 .trip = number,
                                                 .duration = costs_.offload.at(trip.stage)});
    }
    for (size_t number = 0; number < trips_.size(); ++number) {
      const Trip& trip = trips_[number];
      placed.emplace_back(trip.place, Copy{.is_reload = true,
                                           .stage = trip.stage,
                                           .microbatch = trip.microbatch,
                                           .posted_before = steps_[trip.place],
                                           .step = steps_[trip.backward],
                                           .trip = number,
                                           .duration = costs_.reload.at(trip.stage)});
    }
    std::ranges::stable_sort(placed, {}, &std::pair<size_t, Copy>::first);
    RankCopies result;
    result.reload_of.assign(num_steps_, placed.size());
    for (const auto& [_, copy] : placed) {
      if (copy.is_reload) result.reload_of[copy.step] = result.copies.size();
      result.copies.push_back(copy);
    }
    return result;
  }

 private:
  // The way of an activation to the host and back.
  struct Trip {
    int stage, microbatch;
    size_t forward, backward;  // computes
    size_t place = 0;          // the compute before which the copy back is posted
  };

  // A part of the next compute.
  void add(ir::ActionPart part) {
    if (costs_.offload_bytes.at(part.stage()) == 0) return;
    const std::pair key(part.stage(), part.microbatch());
    if (part.kind() == ir::ActionKind::kForward) forwards_[key] = steps_.size();
    if (!ir::gives_input_gradient(part.kind())) return;
    const auto forward = forwards_.find(key);
    if (forward == forwards_.end() || forward->second == steps_.size()) return;
    trips_.push_back({part.stage(), part.microbatch(), forward->second, steps_.size()});
    forwards_.erase(forward);
  }

  // From the last one on: each must end before the next one starts.
  void place_reloads() {
    double end = kInfinity;
    for (auto trip = trips_.rbegin(); trip != trips_.rend(); ++trip) {
      const double start = std::min(end, begins_[trip->backward]) - costs_.reload.at(trip->stage);
      const auto before = trip + 1;  // the one that is back before it
      const size_t earliest =
          std::max(trip->forward + 1, before == trips_.rend() ? 0 : before->backward);
      const auto first = begins_.begin() + static_cast<std::ptrdiff_t>(earliest);
      const auto last = begins_.begin() + static_cast<std::ptrdiff_t>(trip->backward + 1);
      const auto after = std::upper_bound(first, last, start);
      trip->place = static_cast<size_t>(std::max(first, after - 1) - begins_.begin());
      end = std::max(start, begins_[trip->place]);
    }
  }

  const Costs& costs_;
  size_t num_steps_;
  std::vector<size_t> steps_;   // by compute
  std::vector<double> begins_;  // by compute: the time of all computes before it
  std::map<std::pair<int, int>, size_t> forwards_;  // by stage and microbatch, without backward
  std::vector<Trip> trips_;                         // by their backwards
};

}  // namespace

CopyPlan::CopyPlan(const ir::Schedule& schedule, const Costs& costs) {
  if (costs.offload_bytes.is_zero()) return;
  const CostTable table(costs, schedule.placement);
  for (size_t rank = 0; rank < schedule.rows.size(); ++rank)
    ranks_.push_back(RowPlan(schedule.rows[rank], rank, costs, table).copies());
}

double CopyStream::post(size_t step, double time) {
  for (; next_ < copies_.size() && copies_[next_].posted_before <= step; ++next_) {
    Copy& copy = copies_[next_];
    copy.posted = time;
    const double start = std::max(end_, time);
    copy.time = {start, end_ = start + copy.duration};
    if (copy.is_reload) {
      copy.takes = std::max(time, left_[copy.trip]);
    } else {
      left_[copy.trip] = end_;
    }
  }
  return reload_of_[step] < copies_.size() ? copies_[reload_of_[step]].time.end : 0;
}

std::vector<Copy> copies_in(const ir::Schedule& schedule, const CopyPlan& plan,
                            const ir::Timeline& timeline, size_t rank, size_t steps) {
  if (plan.is_empty()) return {};
  CopyStream stream(plan.of(rank));
  double computed = 0;  // the end of the last compute
  for (size_t step = 0; step < schedule.rows[rank].size(); ++step) {
    if (!ir::is_compute(schedule.rows[rank][step].kind())) continue;
    stream.post(step, computed);
    if (step >= steps) break;
    computed = timeline.at(rank, step).end;
  }
  return {stream.posted().begin(), stream.posted().end()};
}

LatestPosts::LatestPosts(const RankCopies& plan)
    : plan_(plan), ends_(plan.copies.size(), kInfinity), start_(kInfinity) {}

double LatestPosts::before(size_t step, double latest_start) {
  const size_t reload = plan_.reload_of[step];
  if (reload < plan_.copies.size()) ends_[reload] = latest_start;
  const size_t left = ends_.size();
  for (; !ends_.empty() && plan_.copies[ends_.size() - 1].posted_before == step; ends_.pop_back())
    start_ = std::min(start_, ends_.back()) - plan_.copies[ends_.size() - 1].duration;
  return ends_.size() < left ? start_ : kInfinity;
}

namespace {

using ir::ActionKind;
using ir::ActionPart;

MemoryParts activation_part(double bytes) {
  MemoryParts parts;
  parts[MemoryUse::kActivations] = bytes;
  return parts;
}

bool has_kind(const ir::Schedule& schedule, ActionKind kind) {
  return std::ranges::any_of(schedule.rows, [kind](const ir::Row& row) {
    return std::ranges::any_of(row,
                               [kind](const ir::Action& action) { return action.kind() == kind; });
  });
}

}  // namespace

MemoryModel::MemoryModel(const ir::Schedule& schedule, const Costs& costs,
                         const Standstill* standstill)
    : schedule_(schedule),
      costs_(costs),
      standstill_(standstill),
      dependencies_(schedule.placement),
      copies_(schedule, costs),
      has_backward_(ir::has_backward(schedule)),
      has_receives_(has_kind(schedule, ActionKind::kRecvF) ||
                    has_kind(schedule, ActionKind::kRecvB)),
      held_throughout_(schedule.rows.size()) {
  const bool has_unshard = has_kind(schedule, ActionKind::kUnshard);
  for (int one = 0; one < schedule.placement.num_instances(); ++one) {
    const int stage = schedule.placement.stage_of_instance(one);
    MemoryParts& held =
        held_throughout_[static_cast<size_t>(schedule.placement.rank_of_instance(one))];
    held[MemoryUse::kParameters] +=
        costs.shard_bytes.at(stage) + (has_unshard ? 0 : costs.parameter_bytes.at(stage));
    held[MemoryUse::kOptimizer] += costs.optimizer_bytes.at(stage);
  }
}

std::vector<MemorySample> MemoryModel::along(const ir::Timeline& timeline, size_t rank) const {
  // First collects changes, then replaces them by their running sums.
  std::vector<MemorySample> changes;
  std::set<int> has_gradients;  // stages
  MemoryParts held = held_throughout_[rank];
  const ir::Row& row = schedule_.rows[rank];
  const auto is_blocked = [&](size_t step) {
    return standstill_ != nullptr && standstill_->blocked[timeline.index(rank, step)];
  };
  size_t steps = 0;  // before the first compute that does not run
  while (steps < row.size() && !(ir::is_compute(row[steps].kind()) && is_blocked(steps))) ++steps;
  const std::vector<Copy> copies = copies_in(schedule_, copies_, timeline, rank, steps);
  for (const Copy& copy : copies) {
    if (!copy.is_reload)
      changes.push_back({copy.time.end, static_cast<int>(copy.step), 0,
                         activation_part(-costs_.offloaded_bytes(copy.stage))});
  }
  for (size_t index = 0; index < row.size(); ++index) {
    if (row[index].is_idle()) continue;
    if (is_blocked(index)) continue;
    const int step = static_cast<int>(index);
    MemorySample begins{timeline.at(rank, index).start, step, 0};
    MemorySample ends{timeline.at(rank, index).end, step, 0};
    for (const ActionPart part : row[index].parts()) {
      const int stage = part.stage();
      const double activation = costs_.activation_bytes.at(stage);
      const double for_weight = costs_.weight_input_bytes.at(stage);
      const auto add_recomputed = [&] {
        begins.parts[MemoryUse::kActivations] += costs_.recomputed_bytes.at(stage);
        ends.parts[MemoryUse::kActivations] -= costs_.recomputed_bytes.at(stage);
      };
      const auto add_gradients = [&] {
        if (has_gradients.insert(stage).second)
          begins.parts[MemoryUse::kGradients] += costs_.gradient_bytes.at(stage);
      };
      switch (part.kind()) {
        case ActionKind::kForward:
          ++begins.activations;
          begins.parts[MemoryUse::kActivations] += activation;
          if (has_backward_) break;
          --ends.activations;
          ends.parts[MemoryUse::kActivations] -= activation;
          break;
        case ActionKind::kBackward:
          add_recomputed();
          add_gradients();
          --ends.activations;
          ends.parts[MemoryUse::kActivations] -= activation;
          break;
        case ActionKind::kBackwardInput:
          add_recomputed();
          ends.parts[MemoryUse::kActivations] += for_weight - activation;
          break;
        case ActionKind::kBackwardWeight:
          add_gradients();
          --ends.activations;
          ends.parts[MemoryUse::kActivations] -= for_weight;
          break;
        case ActionKind::kUnshard:
          begins.parts[MemoryUse::kUnsharded] += costs_.parameter_bytes.at(stage);
          break;
        case ActionKind::kReshard:
          ends.parts[MemoryUse::kUnsharded] -= costs_.parameter_bytes.at(stage);
          break;
        case ActionKind::kReduceGrad:
          if (has_gradients.erase(stage) > 0)
            ends.parts[MemoryUse::kGradients] -= costs_.gradient_bytes.at(stage);
          break;
        case ActionKind::kRecvF:
          begins.parts[MemoryUse::kReceive] += costs_.output_bytes.at(stage - 1);
          break;
        case ActionKind::kRecvB:
          begins.parts[MemoryUse::kReceive] += costs_.input_gradient_bytes.at(stage + 1);
          break;
        case ActionKind::kSendF:
        case ActionKind::kSendB:
        case ActionKind::kWaitSendF:
        case ActionKind::kWaitSendB:
        case ActionKind::kWaitReduceGrad:
        case ActionKind::kIdle:
        case ActionKind::kOverlapFB:
          break;
      }
      if (!has_receives_ || !ir::is_compute(part.kind())) continue;
      // A receive buffer is freed at the end of the compute that used it.
      for (const ir::StageDependencies::Need& need : dependencies_.of(part)) {
        if (!need.of_other_rank) continue;
        ends.parts[MemoryUse::kReceive] -= need.result == ir::Result::kOutput
                                               ? costs_.output_bytes.at(need.stage)
                                               : costs_.input_gradient_bytes.at(need.stage);
      }
    }
    changes.push_back(begins);
    changes.push_back(ends);
  }
  for (const Copy& copy : copies) {
    if (copy.is_reload)
      changes.push_back({copy.takes, static_cast<int>(copy.step), 0,
                         activation_part(costs_.offloaded_bytes(copy.stage))});
  }
  // The sort is stable, so at equal times an action ends before the next one in the row starts.
  std::ranges::stable_sort(changes, {}, &MemorySample::time);
  int activations = 0;
  for (MemorySample& sample : changes) {
    sample.activations = activations += sample.activations;
    sample.parts = held += sample.parts;
    sample.bytes = held.sum();
  }
  return changes;
}

}  // namespace pipewright::schedule
