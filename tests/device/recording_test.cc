// Recordings on a device: times of the device's work, whenever the host queued it, taken without
// making the host wait. recording_test_on_device checks what is recorded of every schedule.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <chrono>
#include <map>
#include <span>
#include <thread>
#include <utility>

#include "pipewright/executor/executor.h"
#include "pipewright/executor/module_stage.h"
#include "pipewright/executor/program/program.h"
#include "pipewright/executor/recorder.h"
#include "pipewright/schedules/registry.h"
#include "tests/device/device.h"
#include "tests/device/no_host_sync.h"
#include "tests/executor/models.h"
#include "tests/support/catalogue/catalogue.h"
#include "tests/support/ranks/ground.h"
#include "tests/support/ranks/ranks.h"

namespace pipewright::executor {
namespace {

using std::chrono::milliseconds;

void sleep_on_host(int time) { std::this_thread::sleep_for(milliseconds(time)); }

void sleep_on_device(int time) {
  testdevice::launch("sleep", {}, {}, [time] { sleep_on_host(time); });
}

TEST(DeviceClock, ItsTimesAreThoseOfTheDevice) {
  testdevice::seed(0);  // nothing runs before the host waits
  DeviceClock clock(testdevice::device(0), 5);
  EXPECT_EQ(clock.seconds(), std::vector<std::optional<double>>(5));
  testdevice::forbid_host_syncs(true);
  clock.begin_step();
  clock.mark({0});
  sleep_on_host(200);
  clock.mark({1});
  const double queued = comms::steady_seconds();
  sleep_on_device(20);
  clock.mark({2, 3});
  sleep_on_host(200);
  testdevice::forbid_host_syncs(false);
  const std::vector<std::optional<double>> seconds = clock.seconds();
  const double end = comms::steady_seconds();
  // Queued 0.2 s apart, reached one after the other; aligned to the clock of the host.
  EXPECT_LT(*seconds[1] - *seconds[0], 0.1);
  EXPECT_GE(*seconds[1], *seconds[0]);
  EXPECT_GT(*seconds[0], queued + 0.1);
  EXPECT_LT(*seconds[3], end);
  EXPECT_GE(*seconds[2] - *seconds[1], 0.02);
  EXPECT_EQ(seconds[2], seconds[3]);
  EXPECT_EQ(seconds[4], std::nullopt);

  clock.begin_step();
  clock.mark({4});
  clock.mark({4});
  sleep_on_device(1);
  clock.mark({0});
  const std::vector<std::optional<double>> next = clock.seconds();
  EXPECT_GT(*next[4], end);
  EXPECT_GE(*next[0] - *next[4], 1e-3);
  EXPECT_EQ(next[1], std::nullopt);
}

TEST(RecordingOnADevice, NeverMakesTheHostWaitInAStep) {
  for (const schedules::ScheduleSpec* spec : tests::schedules_of_one_replica()) {
    const schedules::Shape shape{2, schedules::default_stages(*spec, 2), 4};
    const ir::Program program = make_program(*spec, shape);
    std::vector<comms::World> worlds = tests::make_worlds(2);
    std::barrier all(2);
    const auto train = [&](int rank) {
      const Model model = make_model(ModelKind::kMlp, shape.stages, 8);
      std::map<int, LocalStage> stages;
      for (const int stage : program.placement.stages_of(rank))
        stages[stage].stage =
            std::make_shared<ModuleStage>(model.stages[static_cast<size_t>(stage)]);
      Executor executor(program, stages, worlds[static_cast<size_t>(rank)],
                        {.loss = model.loss, .device = tests::here()});
      executor.record();
      const auto step = [&] {
        EXPECT_EQ(executor.step({model.inputs, {}, model.targets}).bubble, std::nullopt);
      };
      step();  // learns shapes
      tests::expect_no_host_sync(all, step);
      EXPECT_EQ(executor.recording().size() > 0, rank == 0);
    };
    EXPECT_EQ(tests::run_ranks(2, train), "") << spec->name;
  }
}

// Trains two steps on two ranks, and returns the recording of the second one.
ir::Timeline recording_of(const ir::Program& program) {
  std::vector<comms::World> worlds = tests::make_worlds(2);
  ir::Timeline recorded;
  EXPECT_EQ(tests::run_ranks(2,
                             [&](int rank) {
                               const Model model =
                                   make_model(ModelKind::kMlp, program.placement.num_stages(),
                                              2 * program.num_microbatches);
                               std::map<int, LocalStage> stages;
                               for (const int stage : program.placement.stages_of(rank)) {
                                 const auto one = std::make_shared<ModuleStage>(
                                     model.stages[static_cast<size_t>(stage)]);
                                 one->set_least_offload(1);
                                 stages[stage].stage = one;
                               }
                               Executor executor(program, stages, worlds[static_cast<size_t>(rank)],
                                                 {.loss = model.loss, .device = tests::here()});
                               executor.record();
                               for (int step = 0; step < 2; ++step)
                                 executor.step({model.inputs, {}, model.targets});
                               ir::Timeline timeline = executor.recording();
                               if (rank == 0) recorded = std::move(timeline);
                             }),
            "");
  return recorded;
}

TEST(RecordingOnADevice, HasThePartsOfCompoundsOnBothStreams) {
  ir::Program program = make_program(*schedules::find_schedule("DualPipeV"), {2, 4, 6});
  program.offload = {0, 1};  // beside copies
  const ir::Timeline recorded = recording_of(program);
  std::map<std::pair<uint32_t, ir::ActionPart>, ir::Work> work;
  size_t copies = 0;
  for (const ir::Work& one : recorded.work()) {
    if (one.track == ir::WorkTrack::kToHost || one.track == ir::WorkTrack::kToDevice)
      ++copies;
    else
      EXPECT_TRUE(work.emplace(std::pair(one.rank, one.part), one).second);
  }
  EXPECT_GE(copies, 12);  // each to the host, some back
  size_t expected = 0;
  int compounds = 0;
  for (uint32_t rank = 0; rank < 2; ++rank) {
    RowPlan plan = plan_row(program.rows[rank]);
    plan_streams(&plan);
    for (const PlannedAction& planned : plan.actions) {
      const std::span<const ir::ActionPart> parts = planned.action.parts();
      if (!planned.on_side[0] && !planned.on_side[1]) continue;
      compounds += planned.action.is_compound();
      const ir::Interval& whole = recorded.at(rank, static_cast<size_t>(planned.step));
      for (size_t k = 0; k < parts.size(); ++k, ++expected) {
        const auto found = work.find({rank, parts[k]});
        ASSERT_NE(found, work.end());
        const auto& [_, track, part, time] = found->second;
        EXPECT_EQ(track, planned.on_side[k] ? ir::WorkTrack::kCompute2 : ir::WorkTrack::kCompute1);
        EXPECT_GT(time.duration(), 0);
        EXPECT_LE(time.end, whole.end);
        if (k == 0) {
          EXPECT_GE(time.start, whole.start);
        }
      }
    }
  }
  EXPECT_GT(compounds, 0);
  EXPECT_EQ(work.size(), expected);
}

// Each after the forward whose results it moves, and before the end of the backward that needs
// them.
TEST(RecordingOnADevice, HasTheCopiesOfStagesThatOffload) {
  for (const char* name : {"GPipe", "1F1B"}) {
    SCOPED_TRACE(name);
    ir::Program program = make_program(*schedules::find_schedule(name), {2, 2, 6});
    program.offload = {0, 1};
    const ir::Timeline recorded = recording_of(program);
    std::map<ir::ActionPart, std::vector<ir::Interval>> copies;
    for (const ir::Work& one : recorded.work()) {
      EXPECT_EQ(static_cast<int>(one.rank), one.part.stage());
      std::vector<ir::Interval>& of_forward = copies[one.part];
      EXPECT_EQ(one.track, of_forward.empty() ? ir::WorkTrack::kToHost : ir::WorkTrack::kToDevice);
      of_forward.push_back(one.time);
    }
    EXPECT_EQ(copies.size(), 12);
    for (size_t rank = 0; rank < 2; ++rank) {
      // What would come back at once has not left: each backward follows its forward there.
      const bool stays = rank == 1 && program.name == "1F1B";
      for (size_t step = 0; step < program.rows[rank].size(); ++step) {
        const ir::Action& action = program.rows[rank][step];
        if (!ir::is_compute(action.kind())) continue;
        const ir::ActionPart part = action.parts()[0];
        const std::vector<ir::Interval>& found =
            copies[{ir::ActionKind::kForward, part.stage(), part.microbatch()}];
        ASSERT_GE(found.size(), 1);
        if (stays || program.name == "GPipe") {
          EXPECT_EQ(found.size(), stays ? 1 : 2);
        }
        const ir::Interval& compute = recorded.at(rank, step);
        if (part.kind() == ir::ActionKind::kForward) {
          EXPECT_GE(found[0].start, compute.end);
        } else if (found.size() == 2) {
          EXPECT_LE(found[0].end, found[1].start);
          EXPECT_LE(found[1].start, compute.end);
        }
      }
    }
  }
}

// The stage of rank 1 keeps its device busy, that of rank 0 its host.
TEST(RecordingOnADevice, ABusyHostIsNotCompute) {
  testdevice::seed(0);
  const ir::Program program = make_program(*schedules::find_schedule("GPipe"), {2, 2, 2});
  std::vector<comms::World> worlds = tests::make_worlds(2);
  ir::Timeline recorded;
  const auto train = [&](int rank) {
    const auto stage = std::make_shared<ModuleStage>([rank](const Tensors& inputs) {
      rank == 0 ? sleep_on_host(200) : sleep_on_device(20);
      return Tensors{inputs[0] * 2};
    });
    Executor executor(
        program, {{rank, {stage}}}, worlds[static_cast<size_t>(rank)],
        {.loss = [](const Tensors& outputs) { return outputs[0].sum(); }, .device = tests::here()});
    executor.record();
    executor.step({{at::ones({4, 2}, tests::here()).requires_grad_()}, {}, {}});
    const ir::Timeline timeline = executor.recording();
    if (rank == 0) recorded = timeline;
  };
  ASSERT_EQ(tests::run_ranks(2, train), "");
  for (size_t rank = 0; rank < 2; ++rank) {
    int forwards = 0;
    for (size_t step = 0; step < program.rows[rank].size(); ++step) {
      if (program.rows[rank][step].kind() != ir::ActionKind::kForward) continue;
      ++forwards;
      const double duration = recorded.at(rank, step).duration();
      EXPECT_GT(duration, 0);
      if (rank == 0)
        EXPECT_LT(duration, 0.1);
      else
        EXPECT_GE(duration, 0.02);
    }
    EXPECT_EQ(forwards, 2);
  }
}

}  // namespace
}  // namespace pipewright::executor
