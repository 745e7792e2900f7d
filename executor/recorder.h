#ifndef PIPEWRIGHT_EXECUTOR_RECORDER_H_
#define PIPEWRIGHT_EXECUTOR_RECORDER_H_

#include <c10/core/Device.h>
#include <c10/core/Event.h>

#include <chrono>
#include <cstddef>
#include <initializer_list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "pipewright/comms/clock_offset.h"
#include "pipewright/comms/process/steady_seconds.h"
#include "pipewright/comms/world.h"
#include "pipewright/executor/program/program.h"
#include "pipewright/ir/schedule.h"
#include "pipewright/ir/timeline.h"

namespace pipewright::executor {

// Tells when the work of a step reached certain points, which are numbered from 0: HostClock for
// work that the host does itself, DeviceClock (recorder.h) for what it queues. Torch-free. For
// one thread.
class StepClock {
 public:
  virtual ~StepClock() = default;

  // Forgets all points, and those of mark_next().
  virtual void begin_step() = 0;
  // The work has come to these points at once, or will when it has done what has been queued.
  // Marking a point again replaces its time. Never blocks.
  virtual void mark(std::initializer_list<size_t> points) = 0;
  // Marks a further point of this step, and returns its number.
  virtual size_t mark_next() = 0;
  // By point, in seconds of the host's steady clock; nullopt for a point that was not marked.
  // Blocks until the marked points have been reached.
  virtual std::vector<std::optional<double>> seconds() = 0;
};

// The time of the host when it marks a point.
class HostClock final : public StepClock {
 public:
  explicit HostClock(size_t num_points) : num_points_(num_points), seconds_(num_points) {}

  void begin_step() override { seconds_.assign(num_points_, std::nullopt); }
  void mark(std::initializer_list<size_t> points) override {
    const double now = comms::steady_seconds();
    for (const size_t point : points) seconds_[point] = now;
  }
  size_t mark_next() override {
    seconds_.emplace_back(comms::steady_seconds());
    return seconds_.size() - 1;
  }
  std::vector<std::optional<double>> seconds() override { return seconds_; }

 private:
  const size_t num_points_;
  std::vector<std::optional<double>> seconds_;
};

// When a device reached points of its current stream, by its own events, which do not block the
// host. One code path for all devices of c10 whose events have times.
//
// seconds() converts them to the time of the host: it waits for the device, records more events on
// the idle stream, and takes the middle of the fastest of these round trips. So its error is at
// most half of a round trip, the same for all points.
class DeviceClock final : public StepClock {
 public:
  DeviceClock(at::Device device, size_t num_points);

  void begin_step() override;
  void mark(std::initializer_list<size_t> points) override;
  size_t mark_next() override;
  std::vector<std::optional<double>> seconds() override;

 private:
  // Records an event with a time on the current stream.
  void record(c10::Event* event) const;

  const at::Device device_;
  const size_t num_points_;
  c10::Event begin_;
  std::vector<std::optional<size_t>> event_of_;  // by point
  std::vector<c10::Event> events_;               // reused by the next step
  size_t num_recorded_ = 0;
};

// Measured timelines: when the actions of a step really ran. Torch-free.

// What one rank has recorded, by its own clock.
struct RankRecording {
  std::vector<ir::Interval> intervals;  // one per step of the row
  std::vector<ir::Work> work;           // whose ranks are not set
};

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
// wait. Of a backward that recomputes and then waits, the recomputation is recorded as if it had
// run just before the tensor came. A compound does not include the wait of its first part. What a
// compute waits for within itself, such as parameters that are still being gathered, counts as
// compute. Work beside the actions (ir::Work) is recorded by begin_work() and end_work(). On a
// device, the times are those of the stream on which the computes run (DeviceClock),
// whenever the host queued them. For one thread.
class Recorder {
 public:
  // `clock` has num_points(row) points.
  Recorder(const ir::Row& row, std::unique_ptr<StepClock> clock);
  // The start and the end of each action; when it has recomputed, and what it then waited for.
  static size_t num_points(const ir::Row& row) { return 4 * row.size(); }

  void begin_step();
  void begin(const PlannedAction& planned);
  void received(ir::ActionPart receive);  // ignored outside of a step
  // The current action has recomputed, and now waits for its gradient.
  void recomputed();
  // Work on the current stream, between these two calls, which do not nest. A part of a compound
  // starts when its input is there, or when it starts to recompute.
  void begin_work(ir::WorkTrack track, ir::ActionPart part);
  void end_work();
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
  std::vector<ir::Interval> intervals() const { return recording().intervals; }
  // The same, with the work beside them.
  RankRecording recording() const;

 private:
  enum class State { kEmpty, kRunning, kComplete };

  struct MarkedWork {
    ir::WorkTrack track;
    ir::ActionPart part;
    size_t begin;               // points
    std::optional<size_t> end;  // nullopt while it is under way
    bool has_recomputed = false;
  };

  MarkedWork* under_way();

  const ir::Row row_;
  State state_ = State::kEmpty;
  const std::unique_ptr<StepClock> clock_;
  std::map<ir::ActionPart, size_t> receives_;  // the steps of RECVs
  ir::Action current_;
  size_t step_ = 0;
  bool has_recomputed_ = false;  // the current action
  std::vector<MarkedWork> work_;
};

// The recordings of all ranks, by one clock, as one timeline that begins at 0. In it a SEND ends
// when its tensors have arrived, or its WAIT is over, and a RECV starts no sooner than its SEND.
// Errors of the ranks' clocks may show a tensor that arrives before it was sent; it then arrives at
// once.
ir::Timeline merge_recordings(const ir::Program& program, const std::vector<RankRecording>& ranks);

// Collective over the ranks of a program: compares their clocks, and returns the merged recordings
// on rank 0 of the program, by its clock; on other ranks an empty timeline. `clock` is the one of
// this rank's recorder, and `start` its offset from program rank 0's before the recording: the rate
// at which it has drifted since then is taken to be constant. `key` is a prefix in the store that
// nothing else uses. Throws std::runtime_error if the world fails, or if a rank does not call it
// within `timeout`.
ir::Timeline gather_recording(comms::World& world, const std::string& key,
                              const ir::Program& program, int rank, const Recorder& recorder,
                              const comms::NamedClock& clock, const comms::ClockOffset& start,
                              std::chrono::milliseconds timeout);

}  // namespace pipewright::executor

#endif  // PIPEWRIGHT_EXECUTOR_RECORDER_H_
