// Recordings of ranks whose clocks tell different times and go at different rates.
#include <gtest/gtest.h>

#include <atomic>
#include <barrier>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "pipewright/comms/threads/threads.h"
#include "pipewright/executor/recorder.h"
#include "pipewright/schedule/graph/channel_graph.h"
#include "pipewright/schedule/simulate/simulate.h"
#include "pipewright/schedules/registry.h"
#include "tests/executor/models.h"
#include "tests/support/ranks/ranks.h"

namespace pipewright::executor {
namespace {

constexpr std::chrono::seconds kTimeout{60};

// Has reached its points at given times.
class GivenTimes final : public StepClock {
 public:
  // The first `num_points` are those that mark() would mark.
  GivenTimes(std::vector<std::optional<double>> seconds, size_t num_points)
      : seconds_(std::move(seconds)), next_(num_points) {}
  void begin_step() override {}
  void mark(std::initializer_list<size_t>) override {}
  size_t mark_next() override { return next_++; }
  std::vector<std::optional<double>> seconds() override { return seconds_; }

 private:
  const std::vector<std::optional<double>> seconds_;
  size_t next_;
};

// What the clock of a rank says. That of rank 1 goes 1% too fast, that of rank 2 too slow.
double told(int rank, double time) {
  const double rates[] = {1, 1.01, 0.99}, ahead[] = {0, 1000, -50};
  return rates[rank] * time + ahead[rank];
}

TEST(GatherRecording, CorrectsClocksThatDrift) {
  constexpr int kRanks = 3;
  constexpr double kBegin = 100;  // of the step, after the first comparison and before the second
  const ir::Program program = make_program(*schedules::find_schedule("1F1B"), {kRanks, kRanks, 4});
  const ir::Timeline truth = schedule::simulate(
      schedule::ChannelGraph::of_program(program, ir::ChannelModel::kEdge, ir::kUnboundedCapacity),
      program, {});
  std::vector<comms::World> worlds = comms::thread_worlds(kRanks);
  std::atomic<double> now{0};  // stands still while clocks are compared, so nothing is uncertain
  std::barrier all(kRanks, [&]() noexcept { now = 300; });
  ir::Timeline merged;
  const std::string errors = tests::run_ranks(kRanks, [&](int rank) {
    comms::World& world = worlds[static_cast<size_t>(rank)];
    const comms::NamedClock clock{"machine " + std::to_string(rank),
                                  [&, rank] { return told(rank, now); }};
    const comms::ClockOffset start =
        comms::clock_offset(world, "start", rank, kRanks, clock, kTimeout);
    const ir::Row& row = program.rows[static_cast<size_t>(rank)];
    std::vector<std::optional<double>> seconds;
    for (size_t step = 0; step < row.size(); ++step) {
      const ir::Interval& one = truth.at(static_cast<size_t>(rank), step);
      for (const double time : {one.start, one.end}) seconds.push_back(told(rank, kBegin + time));
      seconds.insert(seconds.end(), 2, std::nullopt);  // nothing recomputes
    }
    ASSERT_EQ(seconds.size(), Recorder::num_points(row));
    // Rank 0 copies once, rank 1 twice, rank 2 not at all.
    const int copies = rank == 0 ? 1 : rank == 1 ? 2 : 0;
    for (int copy = 0; copy < copies; ++copy) {
      seconds.emplace_back(told(rank, kBegin + 2 + copy));
      seconds.emplace_back(told(rank, kBegin + 2.5 + copy));
    }
    Recorder recorder(row, std::make_unique<GivenTimes>(seconds, Recorder::num_points(row)));
    for (int copy = 0; copy < copies; ++copy) {
      recorder.begin_work(ir::WorkTrack::kToDevice, {ir::ActionKind::kForward, rank, copy});
      recorder.end_work();
    }
    all.arrive_and_wait();
    const ir::Timeline timeline =
        gather_recording(world, "end", program, rank, recorder, clock, start, kTimeout);
    if (rank == 0) merged = timeline;
  });
  ASSERT_EQ(errors, "");
  ASSERT_EQ(merged.work().size(), 3);
  for (size_t number = 0; number < 3; ++number) {
    const ir::Work& work = merged.work()[number];
    const int rank = number == 0 ? 0 : 1, copy = number == 2 ? 1 : 0;
    EXPECT_EQ(work.rank, rank);
    EXPECT_EQ(work.track, ir::WorkTrack::kToDevice);
    EXPECT_EQ(work.part, ir::ActionPart(ir::ActionKind::kForward, rank, copy));
    EXPECT_NEAR(work.time.start, 2 + copy, 1e-9);
    EXPECT_NEAR(work.time.end, 2.5 + copy, 1e-9);
  }
  for (size_t rank = 0; rank < kRanks; ++rank) {
    for (size_t step = 0; step < program.rows[rank].size(); ++step) {
      const ir::Action& action = program.rows[rank][step];
      if (!ir::is_compute(action.kind())) continue;  // the merge changes transfers
      EXPECT_NEAR(merged.at(rank, step).start, truth.at(rank, step).start, 1e-9)
          << rank << " " << step;
      EXPECT_NEAR(merged.at(rank, step).end, truth.at(rank, step).end, 1e-9) << rank << " " << step;
    }
  }
}

}  // namespace
}  // namespace pipewright::executor
