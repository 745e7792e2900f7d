#ifndef PIPEWRIGHT_SCHEDULE_VIEWS_KINETO_H_
#define PIPEWRIGHT_SCHEDULE_VIEWS_KINETO_H_

#include <cstddef>
#include <iosfwd>

#include "pipewright/ir/schedule.h"
#include "pipewright/ir/timeline.h"
#include "pipewright/schedule/graph/deadlock.h"
#include "pipewright/schedule/problem/costs.h"
#include "pipewright/schedule/views/trace_tracks.h"

namespace pipewright::schedule {

// Prints a timeline as Kineto, PyTorch's profiler, would write that of a job on GPUs: one trace per
// rank, which Holistic Trace Analysis (HTA) reads from a folder.
//
//   const KinetoTraces traces(program, costs, timeline);
//   for (size_t rank = 0; rank < traces.num_ranks(); ++rank) {
//     std::ofstream file("traces/rank_" + std::to_string(rank) + ".json");
//     traces.print(rank, file);
//   }
//
// Each action is a kernel on the stream that its track (trace_tracks.h) numbers. HTA tells kernels
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

#endif  // PIPEWRIGHT_SCHEDULE_VIEWS_KINETO_H_
