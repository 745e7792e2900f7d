#ifndef PIPEWRIGHT_EXECUTOR_RECORDER_H_
#define PIPEWRIGHT_EXECUTOR_RECORDER_H_

#include <map>
#include <memory>
#include <vector>

#include "pipewright/executor/row_plan.h"
#include "pipewright/executor/step_clock.h"
#include "pipewright/ir/schedule.h"
#include "pipewright/ir/timeline.h"

// Measured timelines: when the actions of a step really ran. Torch-free.

namespace pipewright::executor {

// Records one step of one rank, in seconds of the host's steady clock.
//
//   Recorder recorder(row, std::make_unique<HostClock>(Recorder::num_points(row)));
//   recorder.begin_step();
//   for (const PlannedAction& planned : plan_row(row).actions) {
//     recorder.begin(planned);
//     ...  // run it; recorder.received(part) whenever a RECV's tensors are there
//     recorder.end();
//   }
//   recorder.end_step();
//   recorder.intervals();  // by step of the row
//
// A compute starts when the last tensor that it waits for is there, and so does not include the
// wait. A compound does not include the wait of its first part. What a compute waits for within
// itself, such as parameters that are still being gathered, counts as compute. On a device, the
// times are those of the stream on which the computes run (DeviceClock), whenever the host queued
// them. For one thread.
class Recorder {
 public:
  // `clock` has num_points(row) points.
  Recorder(const ir::Row& row, std::unique_ptr<StepClock> clock);
  // The start and the end of each action.
  static size_t num_points(const ir::Row& row) { return 2 * row.size(); }

  void begin_step();
  void begin(const PlannedAction& planned);
  void received(ir::ActionPart receive);  // ignored outside of a step
  void end();
  void end_step();

  // Whether intervals() is a whole step.
  bool is_complete() const { return state_ == State::kComplete; }

  // The share of a whole step, from the start of its first action to the end of its last, in which
  // no compute ran. SENDs, their WAITs and RECVs do not count, as in schedule::Report. Blocks like
  // intervals().
  double bubble() const;

  // One interval per step of the row, 0 to 0 for idle slots and for what has not run. A SEND ends
  // when it has been posted; a RECV begins when it is posted, and ends when its tensors are first
  // seen to be there. Blocks until a device has done what is recorded.
  std::vector<ir::Interval> intervals() const;

 private:
  enum class State { kEmpty, kRunning, kComplete };

  const ir::Row row_;
  State state_ = State::kEmpty;
  const std::unique_ptr<StepClock> clock_;
  std::map<ir::ActionPart, size_t> receives_;  // the steps of RECVs
  ir::Action current_;
  size_t step_ = 0;
};

// The recordings of all ranks, by one clock, as one timeline that begins at 0. In it a SEND ends
// when its tensors have arrived, or its WAIT is over, and a RECV starts no sooner than its SEND.
// Errors of the ranks' clocks may show a tensor that arrives before it was sent; it then arrives at
// once.
ir::Timeline merge_recordings(const ir::Program& program,
                              const std::vector<std::vector<ir::Interval>>& ranks);

}  // namespace pipewright::executor

#endif  // PIPEWRIGHT_EXECUTOR_RECORDER_H_
