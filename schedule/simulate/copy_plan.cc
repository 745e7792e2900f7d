#include "pipewright/schedule/simulate/copy_plan.h"

#include <algorithm>
#include <limits>
#include <map>
#include <utility>

namespace pipewright::schedule {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Plans the copies of one rank. Computes are numbered along its row, without other actions.
class RowPlan {
 public:
  RowPlan(const ir::Row& row, const Costs& costs, const CostTable& table)
      : costs_(costs), num_steps_(row.size()) {
    double begin = 0;
    for (size_t step = 0; step < row.size(); ++step) {
      if (!ir::is_compute(row[step].kind())) continue;
      for (const ir::ActionPart part : row[step].parts()) add(part);
      steps_.push_back(step);
      begins_.push_back(begin);
      begin += table.duration(row[step]);
    }
  }

  RankCopies copies() {
    place_reloads();
    // At one place, copies to the host come first: their F is the compute before it.
    std::vector<std::pair<size_t, Copy>> placed;
    for (const Trip& trip : trips_) {
      placed.emplace_back(trip.forward + 1, Copy{.is_reload = false,
                                                 .stage = trip.stage,
                                                 .posted_before = steps_[trip.forward + 1],
                                                 .step = steps_[trip.forward],
                                                 .duration = costs_.offload.at(trip.stage)});
    }
    for (const Trip& trip : trips_) {
      placed.emplace_back(trip.place, Copy{.is_reload = true,
                                           .stage = trip.stage,
                                           .posted_before = steps_[trip.place],
                                           .step = steps_[trip.backward],
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
    int stage;
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
    trips_.push_back({part.stage(), forward->second, steps_.size()});
    forwards_.erase(forward);
  }

  // From the last one on: each must end before the next one starts.
  void place_reloads() {
    double end = kInfinity;
    for (auto trip = trips_.rbegin(); trip != trips_.rend(); ++trip) {
      const double start = std::min(end, begins_[trip->backward]) - costs_.reload.at(trip->stage);
      const auto first = begins_.begin() + static_cast<std::ptrdiff_t>(trip->forward + 1);
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
  for (const ir::Row& row : schedule.rows) ranks_.push_back(RowPlan(row, costs, table).copies());
}

double CopyStream::post(size_t step, double time) {
  for (; next_ < copies_.size() && copies_[next_].posted_before <= step; ++next_) {
    Copy& copy = copies_[next_];
    copy.posted = time;
    const double start = std::max(end_, time);
    copy.time = {start, end_ = start + copy.duration};
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

}  // namespace pipewright::schedule
