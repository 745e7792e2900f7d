#ifndef PIPEWRIGHT_SCHEDULE_VIEWS_TRACE_TRACKS_H_
#define PIPEWRIGHT_SCHEDULE_VIEWS_TRACE_TRACKS_H_

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "pipewright/ir/schedule.h"
#include "pipewright/ir/timeline.h"
#include "pipewright/schedule/graph/deadlock.h"

// The tracks of a trace: which actions of a rank are drawn in one line.

namespace pipewright::schedule {

enum class TrackKind { kCompute, kSend, kReceive, kDataParallel };
inline constexpr int kNumTrackKinds = 4;
// "compute", "send", "receive" or "data-parallel".
std::string_view name(TrackKind kind);

// Viewers show slices of one track only if they nest. Transfers overlap, so each goes to the first
// track of its kind that is free when it starts: lane 0, or a further one. Actions of a deadlocked
// schedule that never run have no track. O(n log n) in the number of actions.
class TraceTracks {
 public:
  struct Track {
    size_t rank;
    TrackKind kind;
    size_t lane;
    std::vector<size_t> steps;  // of the rank's row, in the order in which they start

    std::string name() const;  // "send", "send 2", ...
    // Unique within its rank.
    int number() const { return static_cast<int>(kind) + kNumTrackKinds * static_cast<int>(lane); }
  };

  TraceTracks(const ir::Schedule& schedule, const ir::Timeline& timeline,
              const Standstill* standstill);

  // By rank, kind and lane.
  const std::vector<Track>& tracks() const { return tracks_; }
  bool runs(size_t rank, size_t step) const { return track_of_[rank][step] >= 0; }
  // The track of an action that runs, as an index of tracks().
  size_t index_of(size_t rank, size_t step) const {
    return static_cast<size_t>(track_of_[rank][step]);
  }
  const Track& of(size_t rank, size_t step) const { return tracks_[index_of(rank, step)]; }

 private:
  std::vector<Track> tracks_;
  std::vector<std::vector<int>> track_of_;  // by rank and step; -1: does not run
};

}  // namespace pipewright::schedule

#endif  // PIPEWRIGHT_SCHEDULE_VIEWS_TRACE_TRACKS_H_
