#ifndef PIPEWRIGHT_SCHEDULE_VIEWS_TRACE_H_
#define PIPEWRIGHT_SCHEDULE_VIEWS_TRACE_H_

#include <cstddef>
#include <iosfwd>
#include <string>
#include <string_view>
#include <vector>

#include "pipewright/ir/schedule.h"
#include "pipewright/ir/timeline.h"
#include "pipewright/schedule/graph/deadlock.h"
#include "pipewright/schedule/problem/costs.h"

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

// The work beside the actions, by rank, track and start.
std::vector<ir::Work> sorted_work(const ir::Timeline& timeline);

// Prints a timeline as Chrome trace events, a JSON object that ui.perfetto.dev and chrome://tracing
// open: one process per rank with tracks for compute, send, receive and data-parallel actions
// (trace.h) and for work beside the actions (ir::Work), an arrow from each SEND to its RECV, and
// counters of live activations and, if the costs have sizes, of bytes. Times are in microseconds:
// the units "s", "ms", "us" and "ns" are converted, and any other unit counts as a millisecond.
// `standstill`, of a schedule that cannot run to its end, leaves out the actions that never run,
// and adds an instant event where each rank stops. Linear in the number of actions.
void print_trace(const ir::Schedule& schedule, const Costs& costs, const ir::Timeline& timeline,
                 std::ostream& out, const Standstill* standstill = nullptr);

// The unit of times in a trace: 1e6 for "s".
double microseconds_per_unit(std::string_view unit);

// Prints a timeline as Kineto, PyTorch's profiler, would write that of a job on GPUs: one trace per
// rank, which Holistic Trace Analysis (HTA) reads from a folder.
//
//   const KinetoTraces traces(program, costs, timeline);
//   for (size_t rank = 0; rank < traces.num_ranks(); ++rank) {
//     std::ofstream file("traces/rank_" + std::to_string(rank) + ".json");
//     traces.print(rank, file);
//   }
//
// Each action is a kernel on the stream that its track (trace.h) numbers. HTA tells kernels
// by their names: a compute is named as it is (`0F3`), and every other action as one of NCCL's
// (`ncclKernel_0SEND_F3`), so it counts as communication. Times are whole microseconds, because
// HTA rounds them otherwise, and gives short kernels a negative duration; units are converted as by
// print_trace(). `standstill`, of a schedule that cannot run to its end, leaves out the actions
// that never run. All arguments must outlive this. Linear in the number of actions, but for
// sorting.
class KinetoTraces {
 public:
  KinetoTraces(const ir::Schedule& schedule, const Costs& costs, const ir::Timeline& timeline,
               const Standstill* standstill = nullptr);

  size_t num_ranks() const { return schedule_.rows.size(); }
  void print(size_t rank, std::ostream& out) const;

 private:
  const ir::Schedule& schedule_;
  const ir::Timeline& timeline_;
  const double microseconds_;  // per unit of time
  const TraceTracks tracks_;
};

}  // namespace pipewright::schedule

#endif  // PIPEWRIGHT_SCHEDULE_VIEWS_TRACE_H_
