// Offsets between clocks that are known to differ by a given time.
#include "pipewright/comms/clock_offset.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <thread>

#include "pipewright/comms/threads/threads.h"
#include "tests/support/ranks/ranks.h"

namespace pipewright::comms {
namespace {

constexpr std::chrono::seconds kTimeout{60};

NamedClock shifted(const std::string& name, double seconds) {
  const NamedClock clock = steady_clock_of_machine();
  return {name, [now = clock.now, seconds] { return now() + seconds; }};
}

TEST(ClockOffset, IsWithinItsErrorOfTheTruth) {
  const double ahead[] = {0, 1000, -3600, 0.25};  // of rank 0's clock
  std::vector<World> worlds = thread_worlds(4);
  std::vector<ClockOffset> offsets(4);
  const std::string errors = tests::run_ranks(4, [&](int rank) {
    const auto index = static_cast<size_t>(rank);
    offsets[index] =
        clock_offset(worlds[index], "test/clock", rank, 4,
                     shifted("machine " + std::to_string(rank), ahead[index]), kTimeout);
  });
  ASSERT_EQ(errors, "");
  EXPECT_EQ(offsets[0].seconds, 0);
  EXPECT_EQ(offsets[0].error, 0);
  for (size_t rank = 1; rank < 4; ++rank) {
    const double rounding = 1e-6;  // of times in seconds since the machine's start
    EXPECT_NEAR(offsets[rank].seconds, -ahead[rank], offsets[rank].error + rounding);
    EXPECT_GT(offsets[rank].error, 0);
    EXPECT_LT(offsets[rank].error, 30);  // half of the timeout
  }
}

TEST(ClockOffset, ASteadyDriftIsWithinTheErrorsOfTheTruth) {
  std::vector<World> worlds = thread_worlds(2);
  const auto now = steady_clock_of_machine().now;
  const auto told = [](double time) { return 1.01 * time + 1000; };
  const std::string errors = tests::run_ranks(2, [&](int rank) {
    World& world = worlds[static_cast<size_t>(rank)];
    const NamedClock clock =
        rank == 0 ? NamedClock{"true", now} : NamedClock{"fast", [&] { return told(now()); }};
    const ClockOffset start = clock_offset(world, "test/start", rank, 2, clock, kTimeout);
    std::this_thread::sleep_for(std::chrono::milliseconds(500));  // a drift of 5 ms
    const double middle = now();
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
    const ClockOffset end = clock_offset(world, "test/end", rank, 2, clock, kTimeout);
    EXPECT_GT(end.at - start.at, 1);
    if (rank == 0) {
      EXPECT_EQ(to_other_clock(middle, start, end), middle);
    } else {
      EXPECT_NEAR(to_other_clock(told(middle), start, end), middle,
                  std::max(start.error, end.error) + 1e-6);
    }
  });
  EXPECT_EQ(errors, "");
}

TEST(ClockOffset, IsZeroBetweenRanksOfOneMachine) {
  std::vector<World> worlds = thread_worlds(3);
  const std::string errors = tests::run_ranks(3, [&](int rank) {
    // Rank 1 shares rank 0's machine, rank 2 does not.
    const NamedClock clock = rank == 2 ? shifted("other", 7) : steady_clock_of_machine();
    const ClockOffset offset =
        clock_offset(worlds[static_cast<size_t>(rank)], "test/clock", rank, 3, clock, kTimeout);
    if (rank < 2) {
      EXPECT_EQ(offset.seconds, 0);
      EXPECT_EQ(offset.error, 0);
    } else {
      EXPECT_LT(offset.seconds, -7 + offset.error + 1e-6);
    }
  });
  EXPECT_EQ(errors, "");
}

TEST(ClockOffset, LeavesNothingInTheStore) {
  std::vector<World> worlds = thread_worlds(2);
  const int64_t before = worlds[0].store()->getNumKeys();
  const std::string errors = tests::run_ranks(2, [&](int rank) {
    clock_offset(worlds[static_cast<size_t>(rank)], "test/clock", rank, 2,
                 shifted(std::to_string(rank), rank), kTimeout);
  });
  EXPECT_EQ(errors, "");
  EXPECT_EQ(worlds[0].store()->getNumKeys(), before);
}

TEST(ClockOffset, NamesTheRankThatDoesNotCome) {
  std::vector<World> worlds = thread_worlds(2);
  try {
    clock_offset(worlds[0], "test/clock", 0, 2, steady_clock_of_machine(),
                 std::chrono::milliseconds(50));
    FAIL();
  } catch (const std::runtime_error& error) {
    EXPECT_STREQ(error.what(), "rank 1 of test/clock did not compare its clock within 50 ms");
  }
}

}  // namespace
}  // namespace pipewright::comms
