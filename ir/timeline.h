#ifndef PIPEWRIGHT_IR_TIMELINE_H_
#define PIPEWRIGHT_IR_TIMELINE_H_

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "pipewright/ir/action.h"
#include "pipewright/ir/schedule.h"

namespace pipewright::ir {

// The time during which one action ran. An idle slot has start = end = 0.
struct Interval {
  double start = 0;
  double end = 0;

  double duration() const { return end - start; }
  friend bool operator==(const Interval&, const Interval&) = default;
};

// Where a device works: on the first or the second of its compute streams, or on a copy to the host
// or back.
enum class WorkTrack : uint32_t { kCompute1, kCompute2, kToHost, kToDevice };
inline constexpr std::string_view kWorkTracks[] = {"compute 1", "compute 2", "to host",
                                                   "to device"};
constexpr std::string_view name(WorkTrack track) { return kWorkTracks[static_cast<size_t>(track)]; }

// Work of a rank that is not an action of its own: the part of an action that used the second
// compute stream, and the one that ran beside it on the first; or a copy of what a forward saved.
struct Work {
  uint32_t rank = 0;
  WorkTrack track = WorkTrack::kCompute1;
  ActionPart part = {};  // of a copy: the F that saved it
  Interval time = {};

  friend bool operator==(const Work&, const Work&) = default;
};

// When each action of a schedule ran, either predicted by the simulator or measured by the
// executor: one interval per cell of the schedule's rows, and the work beside them. All times have
// one unit and one origin. A plain value.
//
// A SEND lasts while its tensor is in transit. A RECV lasts from the moment that it takes part in
// the transfer until the tensor has arrived.
class Timeline {
 public:
  Timeline() = default;
  // A timeline with the shape of `rows`, all intervals zero.
  explicit Timeline(const Rows& rows) {
    first_of_rank_.push_back(0);
    for (const Row& row : rows) first_of_rank_.push_back(first_of_rank_.back() + row.size());
    intervals_.resize(first_of_rank_.back());
  }

  size_t num_ranks() const { return first_of_rank_.empty() ? 0 : first_of_rank_.size() - 1; }
  const Interval& at(size_t rank, size_t step) const { return intervals_[index(rank, step)]; }
  Interval& at(size_t rank, size_t step) { return intervals_[index(rank, step)]; }
  std::span<const Interval> row(size_t rank) const {
    return std::span(intervals_)
        .subspan(first_of_rank_[rank], first_of_rank_[rank + 1] - first_of_rank_[rank]);
  }

  // Cells are numbered row by row, so that other per-cell data can be kept in a vector of size().
  size_t index(size_t rank, size_t step) const { return first_of_rank_[rank] + step; }
  size_t size() const { return intervals_.size(); }
  struct Cell {
    size_t rank, step;
  };
  // The inverse of index(). Logarithmic in the number of ranks.
  Cell cell_of(size_t index) const {
    const auto next = std::ranges::upper_bound(first_of_rank_, index);
    return {static_cast<size_t>(next - first_of_rank_.begin()) - 1, index - *(next - 1)};
  }
  const Interval& operator[](size_t index) const { return intervals_[index]; }
  Interval& operator[](size_t index) { return intervals_[index]; }

  // In no particular order. The parts of compounds are measured, never predicted.
  const std::vector<Work>& work() const { return work_; }
  void add(const Work& work) { work_.push_back(work); }

  // Replaces every time by `function` of it.
  template <typename Function>
  void change_times(const Function& function) {
    const auto change = [&](Interval& one) { one = {function(one.start), function(one.end)}; };
    for (Interval& interval : intervals_) change(interval);
    for (Work& work : work_) change(work.time);
  }

  friend bool operator==(const Timeline&, const Timeline&) = default;

 private:
  std::vector<size_t> first_of_rank_;  // index of each rank's first cell, then size()
  std::vector<Interval> intervals_;
  std::vector<Work> work_;
};

// From the first start to the last end of the actions of a schedule: its duration is the makespan.
// Idle slots do not count. 0 to 0 if there are no actions.
inline Interval span_of(const Rows& rows, const Timeline& timeline) {
  std::optional<Interval> span;
  for (size_t rank = 0; rank < rows.size(); ++rank) {
    for (size_t step = 0; step < rows[rank].size(); ++step) {
      if (rows[rank][step].is_idle()) continue;
      const Interval& one = timeline.at(rank, step);
      if (!span) span = one;
      span->start = std::min(span->start, one.start);
      span->end = std::max(span->end, one.end);
    }
  }
  return span.value_or(Interval());
}

// Times are sums of durations in floating point, so two that are equal may differ by rounding. A
// difference of at most this fraction of the makespan, or of the times themselves, counts as none.
inline constexpr double kTimeTolerance = 1e-9;

// A difference between two times, or 0 if it is within kTimeTolerance of `scale`.
inline double without_rounding(double difference, double scale) {
  return std::abs(difference) <= kTimeTolerance * scale ? 0 : difference;
}

// A measured run of a schedule: when each of its actions really ran, from the start of the first.
// The JSON form of a schedule stores it (text/schedule_json.h). A plain value.
struct Recording {
  std::string unit = {};  // of the times: "s", "ms", "us" or "ns"
  Timeline timeline = {};

  friend bool operator==(const Recording&, const Recording&) = default;
};

// "s", "ms", "us" and "ns" in seconds; nullopt for another unit.
inline std::optional<double> seconds_per(std::string_view unit) {
  if (unit == "s") return 1;
  if (unit == "ms") return 1e-3;
  if (unit == "us") return 1e-6;
  if (unit == "ns") return 1e-9;
  return std::nullopt;
}

// A recording from times in seconds, as executor::Executor::recording() returns them: in
// milliseconds, rounded to nanoseconds, which is all that a clock can tell.
inline Recording recording_of_seconds(Timeline timeline) {
  timeline.change_times([](double seconds) { return std::round(seconds * 1e9) / 1e6; });
  return {"ms", std::move(timeline)};
}

}  // namespace pipewright::ir

#endif  // PIPEWRIGHT_IR_TIMELINE_H_
