// What a recording counts as an action's time, and how those of all ranks become one timeline.
#include "pipewright/executor/recorder.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>
#include <utility>

#include "pipewright/executor/program/program.h"
#include "tests/channel_model/programs.h"

namespace pipewright::executor {
namespace {

using ir::ActionKind;
using ir::ActionPart;
using ir::Interval;

// Time passes.
void pass() { std::this_thread::sleep_for(std::chrono::milliseconds(1)); }

const ir::Row kRow = {
    ir::Action(ActionKind::kRecvF, 1, 0),
    ir::Action(ActionKind::kForward, 1, 0),
    ir::Action(ActionKind::kRecvB, 1, 0),
    ir::Action(ActionKind::kRecvF, 1, 1),
    ir::Action::overlap(ActionPart(ActionKind::kForward, 1, 1),
                        ActionPart(ActionKind::kBackward, 1, 0)),
    ir::Action(ActionKind::kSendB, 1, 0),
};

Recorder recorder_of(const ir::Row& row) {
  return {row, std::make_unique<HostClock>(Recorder::num_points(row))};
}

TEST(Recorder, AComputeDoesNotIncludeTheWaitForItsInputs) {
  Recorder recorder = recorder_of(kRow);
  const std::vector<PlannedAction> row = plan_row(kRow).actions;
  recorder.begin_step();
  EXPECT_FALSE(recorder.is_complete());
  recorder.begin(row[0]);
  recorder.end();
  recorder.begin(row[1]);
  const double posted = recorder.intervals()[1].start;
  pass();
  recorder.received({ActionKind::kRecvF, 1, 0});
  pass();
  recorder.end();
  const std::vector<Interval> times = recorder.intervals();
  EXPECT_GT(times[1].start, posted);
  EXPECT_EQ(times[0].end, times[1].start);
  EXPECT_LE(times[0].start, posted);
  EXPECT_GE(times[1].duration(), 1e-3);
  recorder.end_step();
  EXPECT_TRUE(recorder.is_complete());
}

// What it recomputed before it waited counts, as if it had come just before the gradient.
TEST(Recorder, ABackwardIncludesItsRecomputationButNotTheWaitAfterIt) {
  const ir::Row backward = {ir::Action(ActionKind::kRecvB, 1, 0),
                            ir::Action(ActionKind::kBackward, 1, 0)};
  for (const bool is_late : {true, false}) {
    Recorder recorder = recorder_of(backward);
    const std::vector<PlannedAction> row = plan_row(backward).actions;
    recorder.begin_step();
    recorder.begin(row[0]);
    recorder.end();
    if (!is_late) recorder.received({ActionKind::kRecvB, 1, 0});
    recorder.begin(row[1]);
    const double begin = recorder.intervals()[1].start;
    pass();
    const double before = comms::steady_seconds();
    recorder.recomputed();
    const double recomputed = comms::steady_seconds();
    pass();
    const double waited = comms::steady_seconds();
    if (is_late) recorder.received({ActionKind::kRecvB, 1, 0});
    const double resumed = comms::steady_seconds();
    pass();
    recorder.end();
    const double shift = recorder.intervals()[1].start - begin;
    EXPECT_GE(shift, is_late ? waited - recomputed : 0);
    EXPECT_LE(shift, is_late ? resumed - before : 0);
    EXPECT_GE(recorder.intervals()[1].duration(), 2e-3);
  }
}

TEST(Recorder, ACompoundIncludesWhatItsSecondPartWaitsFor) {
  Recorder recorder = recorder_of(kRow);
  const std::vector<PlannedAction> row = plan_row(kRow).actions;
  recorder.begin_step();
  recorder.begin(row[4]);
  recorder.received({ActionKind::kRecvF, 1, 1});
  const double start = recorder.intervals()[4].start;
  pass();
  recorder.received({ActionKind::kRecvB, 1, 0});
  recorder.end();
  EXPECT_EQ(recorder.intervals()[4].start, start);
  EXPECT_EQ(recorder.intervals()[3].end, start);
  EXPECT_GT(recorder.intervals()[2].end, start);
}

// On two streams: each part starts when its own input is there.
TEST(Recorder, PartsOfACompoundStartWithTheirInputs) {
  Recorder recorder = recorder_of(kRow);
  const std::vector<PlannedAction> row = plan_row(kRow).actions;
  const ActionPart forward(ActionKind::kForward, 1, 1), backward(ActionKind::kBackward, 1, 0);
  recorder.begin_step();
  recorder.begin(row[4]);
  recorder.begin_work(ir::WorkTrack::kCompute2, forward);
  pass();
  recorder.received({ActionKind::kRecvF, 1, 1});
  recorder.end_work();
  recorder.begin_work(ir::WorkTrack::kCompute1, backward);
  pass();
  recorder.received({ActionKind::kRecvB, 1, 0});
  pass();
  recorder.end_work();
  recorder.end();
  const RankRecording recording = recorder.recording();
  ASSERT_EQ(recording.work.size(), 2);
  const auto& [one, other] = std::pair(recording.work[0], recording.work[1]);
  EXPECT_EQ(one.track, ir::WorkTrack::kCompute2);
  EXPECT_EQ(one.part, forward);
  EXPECT_GE(one.time.start, recording.intervals[4].start);
  EXPECT_LT(one.time.duration(), 1e-3);
  EXPECT_EQ(other.track, ir::WorkTrack::kCompute1);
  EXPECT_EQ(other.part, backward);
  EXPECT_GE(other.time.start, one.time.end + 1e-3);
  EXPECT_GE(other.time.duration(), 1e-3);
  EXPECT_LE(other.time.end, recording.intervals[4].end);
  recorder.begin_step();
  EXPECT_EQ(recorder.recording().work.size(), 0);
}

TEST(Recorder, APartThatRecomputesStartsThen) {
  Recorder recorder = recorder_of(kRow);
  const std::vector<PlannedAction> row = plan_row(kRow).actions;
  recorder.begin_step();
  recorder.begin(row[4]);
  recorder.begin_work(ir::WorkTrack::kCompute1, {ActionKind::kBackward, 1, 0});
  pass();
  recorder.recomputed();
  recorder.received({ActionKind::kRecvB, 1, 0});
  recorder.end_work();
  EXPECT_GE(recorder.recording().work[0].time.duration(), 1e-3);
}

TEST(Recorder, OtherMicrobatchesDoNotMoveAStart) {
  Recorder recorder = recorder_of(kRow);
  const std::vector<PlannedAction> row = plan_row(kRow).actions;
  recorder.begin_step();
  recorder.begin(row[1]);
  const double start = recorder.intervals()[1].start;
  pass();
  recorder.received({ActionKind::kRecvF, 1, 1});
  recorder.received({ActionKind::kRecvB, 1, 0});
  EXPECT_EQ(recorder.intervals()[1].start, start);
}

TEST(Recorder, AnotherStepForgetsTheLastOne) {
  Recorder recorder = recorder_of(kRow);
  const std::vector<PlannedAction> row = plan_row(kRow).actions;
  recorder.begin_step();
  recorder.begin(row[1]);
  recorder.end();
  recorder.end_step();
  const Interval recorded = recorder.intervals()[1];
  recorder.received({ActionKind::kRecvF, 1, 0});  // an evaluation
  EXPECT_EQ(recorder.intervals()[0], Interval());
  EXPECT_EQ(recorder.intervals()[1], recorded);
  recorder.begin_step();
  EXPECT_EQ(recorder.intervals()[1], Interval());
  EXPECT_FALSE(recorder.is_complete());
}

TEST(Recorder, ItsBubbleIsTheTimeBetweenComputes) {
  Recorder recorder = recorder_of(kRow);
  const std::vector<PlannedAction> row = plan_row(kRow).actions;
  recorder.begin_step();
  for (const PlannedAction& planned : row) {
    recorder.begin(planned);
    if (ir::is_compute(planned.action.kind())) pass();
    recorder.end();
    pass();
  }
  recorder.end_step();
  const std::vector<Interval> times = recorder.intervals();
  const double busy = times[1].duration() + times[4].duration();
  // From the first compute to the last: transfers before and after it do not count.
  EXPECT_DOUBLE_EQ(recorder.bubble(), 1 - busy / (times[4].end - times[1].start));
  EXPECT_GT(recorder.bubble(), 0);
}

TEST(MergeRecordings, TransfersLastFromSendToArrival) {
  const ir::Program program = channel_model::program_of(
      ir::Placement::loop(2, 2), 1, {"0F0 0SEND_F0 0RECV_B0 0B0", "1RECV_F0 1F0 1B0 1SEND_B0"});
  const ir::Timeline timeline = merge_recordings(
      program, {{{{10, 12}, {12, 12.5}, {12.5, 21}, {21, 23}},
                 {{7, ir::WorkTrack::kToHost, ActionPart(ActionKind::kForward, 0, 0), {12, 14}}}},
                {{{9, 15}, {15, 17}, {17, 19}, {19, 19.25}},
                 {{7, ir::WorkTrack::kToHost, ActionPart(ActionKind::kForward, 1, 0), {17, 18}}}}});
  const std::vector<std::vector<Interval>> expected = {
      {{1, 3}, {3, 6}, {10, 12}, {12, 14}},
      {{3, 6}, {6, 8}, {8, 10}, {10, 12}},
  };
  for (size_t rank = 0; rank < 2; ++rank)
    for (size_t step = 0; step < 4; ++step)
      EXPECT_EQ(timeline.at(rank, step), expected[rank][step]) << rank << " " << step;
  const std::vector<ir::Work> work = {
      {0, ir::WorkTrack::kToHost, ActionPart(ActionKind::kForward, 0, 0), {3, 5}},
      {1, ir::WorkTrack::kToHost, ActionPart(ActionKind::kForward, 1, 0), {8, 9}}};
  EXPECT_EQ(timeline.work(), work);
}

TEST(MergeRecordings, ASendEndsAtItsWaitAtTheLatest) {
  const ir::Program program = channel_model::program_of(
      ir::Placement::loop(2, 2), 1, {"0F0 0SEND_F0 0WAIT_SEND_F0", "1RECV_F0 1F0"});
  const ir::Timeline timeline =
      merge_recordings(program, {{{{0, 2}, {2, 2}, {2, 5}}, {}}, {{{1, 9}, {9, 10}}, {}}});
  EXPECT_EQ(timeline.at(0, 1), (Interval{2, 5}));
  EXPECT_EQ(timeline.at(1, 0), (Interval{2, 9}));
}

TEST(MergeRecordings, NothingArrivesBeforeItWasSent) {
  const ir::Program program =
      channel_model::program_of(ir::Placement::loop(2, 2), 1, {"0F0 0SEND_F0", "1RECV_F0 1F0"});
  // Rank 1's clock is late by 5.
  const ir::Timeline timeline =
      merge_recordings(program, {{{{10, 12}, {12, 12}}, {}}, {{{4, 8}, {8, 10}}, {}}});
  EXPECT_EQ(timeline.at(0, 1), (Interval{8, 8}));
  EXPECT_EQ(timeline.at(1, 0), (Interval{8, 8}));
}

}  // namespace
}  // namespace pipewright::executor
