#include "pipewright/schedule/views/trace_tracks.h"

#include <algorithm>

namespace pipewright::schedule {
namespace {

constexpr std::string_view kNames[] = {"compute", "send", "receive", "data-parallel"};

TrackKind kind_of(const ir::Action& action) {
  if (ir::is_send(action.kind())) return TrackKind::kSend;
  if (ir::is_receive(action.kind())) return TrackKind::kReceive;
  // A wait stops the computes of its rank.
  const bool is_on_compute = ir::is_compute(action.kind()) || ir::is_wait(action.kind());
  return is_on_compute ? TrackKind::kCompute : TrackKind::kDataParallel;
}

}  // namespace

std::string_view name(TrackKind kind) { return kNames[static_cast<size_t>(kind)]; }

std::string TraceTracks::Track::name() const {
  const std::string kind_name(schedule::name(kind));
  return lane == 0 ? kind_name : kind_name + " " + std::to_string(lane + 1);
}

TraceTracks::TraceTracks(const ir::Schedule& schedule, const ir::Timeline& timeline,
                         const Standstill* standstill) {
  for (size_t rank = 0; rank < schedule.rows.size(); ++rank) {
    const ir::Row& row = schedule.rows[rank];
    std::vector<size_t> steps_of_kind[kNumTrackKinds];
    for (size_t step = 0; step < row.size(); ++step) {
      const bool runs = !row[step].is_idle() &&
                        (standstill == nullptr || !standstill->blocked[timeline.index(rank, step)]);
      if (runs) steps_of_kind[static_cast<size_t>(kind_of(row[step]))].push_back(step);
    }
    std::vector<int>& tracks = track_of_.emplace_back(row.size(), -1);
    for (int kind = 0; kind < kNumTrackKinds; ++kind) {
      std::vector<size_t>& steps = steps_of_kind[kind];
      std::ranges::sort(steps, [&](size_t one, size_t other) {
        const double left = timeline.at(rank, one).start, right = timeline.at(rank, other).start;
        return left != right ? left < right : one < other;
      });
      const size_t first = tracks_.size();
      std::vector<double> free_from;  // by lane
      for (const size_t step : steps) {
        const ir::Interval& interval = timeline.at(rank, step);
        const auto is_free = [&](double time) { return time <= interval.start; };
        const auto lane =
            static_cast<size_t>(std::ranges::find_if(free_from, is_free) - free_from.begin());
        if (lane == free_from.size()) {
          free_from.push_back(0);
          tracks_.push_back({rank, static_cast<TrackKind>(kind), lane, {}});
        }
        free_from[lane] = interval.end;
        tracks_[first + lane].steps.push_back(step);
        tracks[step] = static_cast<int>(first + lane);
      }
    }
  }
}

}  // namespace pipewright::schedule
