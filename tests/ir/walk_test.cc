#include "pipewright/ir/walk.h"

#include <gtest/gtest.h>

#include <utility>
#include <vector>

namespace pipewright::ir {
namespace {

constexpr ActionKind kF = ActionKind::kForward;

using Passed = std::vector<std::pair<size_t, uint32_t>>;  // rank and number

// F of stage s and microbatch m waits for F of stage s - 1, and wakes the rank of stage s + 1.
bool run_forwards(const Rows& rows, Passed* passed) {
  std::vector<std::vector<bool>> done(rows.size(), std::vector<bool>(10));
  Walk walk(rows);
  return walk.run([&](size_t rank, const Action& action, uint32_t number) {
    const auto microbatch = static_cast<size_t>(action.parts()[0].microbatch());
    if (rank > 0 && !done[rank - 1][microbatch]) return false;
    done[rank][microbatch] = true;
    passed->push_back({rank, number});
    if (rank + 1 < rows.size()) walk.wake(rank + 1);
    return true;
  });
}

TEST(Walk, ARankWaitsForAnother) {
  Passed passed;
  // Rank 1 begins with what rank 0 does last.
  const Rows rows = {{Action(kF, 0, 0), Action(kF, 0, 1)}, {Action(kF, 1, 1), Action(kF, 1, 0)}};
  EXPECT_TRUE(run_forwards(rows, &passed));
  EXPECT_EQ(passed, (Passed{{0, 0}, {0, 1}, {1, 2}, {1, 3}}));
}

TEST(Walk, ARankThatWaitsIsWokenInALaterRound) {
  Passed passed;
  const Rows rows = {{Action(kF, 2, 0)}, {Action(kF, 1, 0)}, {Action(kF, 0, 0)}};
  Walk walk(rows);
  std::vector<bool> done(4);
  EXPECT_TRUE(walk.run([&](size_t rank, const Action&, uint32_t number) {
    if (rank < 2 && !done[rank + 1]) return false;
    done[rank] = true;
    passed.push_back({rank, number});
    if (rank > 0) walk.wake(rank - 1);
    return true;
  }));
  EXPECT_EQ(passed, (Passed{{2, 2}, {1, 1}, {0, 0}}));
}

TEST(Walk, ReturnsFalseIfARankWaitsForever) {
  Passed passed;
  EXPECT_FALSE(run_forwards({{Action(kF, 0, 0)}, {Action(kF, 1, 0), Action(kF, 1, 1)}}, &passed));
  EXPECT_EQ(passed.size(), 2u);
}

// A rank that is woken without need is asked once more, and one that does not wait not at all.
TEST(Walk, WakingIsIdempotent) {
  const Rows rows = {{Action(kF, 0, 0)}, {Action(kF, 1, 0)}};
  Walk walk(rows);
  int asked = 0;
  EXPECT_FALSE(walk.run([&](size_t rank, const Action&, uint32_t) {
    if (rank == 0) {
      for (int time = 0; time < 3; ++time) walk.wake(1);
      return true;
    }
    if (++asked == 1) walk.wake(0);
    return false;
  }));
  EXPECT_EQ(asked, 1);
}

TEST(Walk, RowsMayBeEmpty) {
  Passed passed;
  EXPECT_TRUE(run_forwards({{}, {}}, &passed));
  EXPECT_TRUE(run_forwards({}, &passed));
}

}  // namespace
}  // namespace pipewright::ir
