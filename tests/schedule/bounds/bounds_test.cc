// Lower bounds against optima and closed forms from elsewhere, and against values found by hand.
// soundness_test.cc compares them with schedules of random problems.
#include "pipewright/schedule/bounds/bounds.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

#include "pipewright/schedule/bounds/rank_terms.h"
#include "tests/schedule/search/cases.h"

namespace pipewright::schedule {
namespace {

Bound bound_named(std::string_view name, const Problem& problem) {
  for (Bound& bound : lower_bounds(problem)) {
    if (bound.name == name) return std::move(bound);
  }
  ADD_FAILURE() << "no bound is called " << name;
  return {};
}

Problem uniform(ir::Placement placement, int microbatches, const StageWork& work, Memory limit) {
  Problem problem{.placement = std::move(placement),
                  .num_microbatches = microbatches,
                  .stages = {},
                  .memory_limits = {}};
  for (int stage = 0; stage < problem.num_stages(); ++stage) {
    problem.stages.push_back(work);
    const auto same_rank = [&](int other) {
      return other < 0 || other == problem.num_stages() ||
             problem.placement.rank_of(other) == problem.placement.rank_of(stage);
    };
    if (same_rank(stage + 1)) problem.stages.back().output_transfer = 0;
    if (same_rank(stage - 1)) problem.stages.back().gradient_transfer = 0;
  }
  problem.memory_limits.assign(static_cast<size_t>(problem.num_ranks()), limit);
  return problem;
}

// No bound exceeds the cost of a schedule. With one stage per rank, the bounds meet all optima that
// a constraint solver proved (exact_optima.py), except one.
TEST(BoundsTest, ProvedOptima) {
  for (const tests::KnownCase& one :
       tests::read_exact_optima("tests/schedule/search/exact_optima.json")) {
    const Problem& problem = one.problem;
    const Ticks value = lower_bound(problem).value;
    EXPECT_LE(value, one.cost) << one.name;
    if (!one.is_proved()) continue;
    if (problem.num_stages() == problem.num_ranks()) {
      const bool is_met = one.name != "exact_loop_3x1_6_limit_8";
      EXPECT_GE(value, is_met ? one.cost : 3045) << one.name;
    } else if (problem.stages[0].forward == 1) {
      // arXiv 2405.15362, figure 13, observes this bound for V schedules of these costs.
      const Ticks idle = 6 * problem.num_ranks() - 3 * problem.memory_limits[0] - 1;
      EXPECT_GE(value, 6 * problem.num_microbatches + std::max<Ticks>(0, idle)) << one.name;
    }
  }
}

// With k activations of memory, F + 2c >= W and I >= W, one stage per rank: rank 0 idles for
// (p-1)(I + 2c) + (p-k) F in the warm-up and for (p-1)(F + I + 2c) - (k-1)(I + W) in the cool-down.
// At k = p that is the idle time of ZB-H1, which is therefore optimal for its memory.
TEST(BoundsTest, ZbH1IsOptimal) {
  const Ticks forward = 18'522, input = 18'086, weight = 9'337, comm = 601;
  for (const int ranks : {2, 4, 8, 32}) {
    const Problem problem = uniform(ir::Placement::loop(ranks, ranks), 3 * ranks,
                                    {forward, input, weight, comm, comm, 2, 1}, 2 * ranks);
    const Bound bound = lower_bound(problem);
    EXPECT_EQ(bound.value, 3 * ranks * (forward + input + weight) +
                               (ranks - 1) * (forward + input - weight + 4 * comm));
    EXPECT_EQ(bound.name, "warm_up_and_cool_down");
    EXPECT_EQ(bound.rank, 0);
    EXPECT_EQ(bound.other, -1);
  }
}

// By hand: one rank, two microbatches, memory for one: F 3, I 5, W 2 of each in turn.
TEST(BoundsTest, EachBoundByHand) {
  const Problem one = uniform(ir::Placement::loop(1, 1), 2, {3, 5, 2, 0, 0, 1, 1}, 1);
  EXPECT_EQ(work_bound(one).value, 20);
  EXPECT_EQ(bound_named("one_microbatch", one).value, 10);
  EXPECT_EQ(bound_named("memory_area", one).value, 20);
  EXPECT_EQ(bound_named("lifetimes", one).value, 18);  // twice F and I, and the last W
  // Two ranks, transfers 1: a microbatch takes 2 (3 + 5) + 2 and W; memory for one on each rank.
  const Problem two = uniform(ir::Placement::loop(2, 2), 2, {3, 5, 2, 1, 1, 1, 1}, 1);
  EXPECT_EQ(bound_named("one_microbatch", two).value, 20);
  EXPECT_EQ(bound_named("memory_area", two).value, 40);
  EXPECT_EQ(bound_named("memory_area", two).rank, 0);
  EXPECT_EQ(bound_named("lifetimes", two).value, 38);
  // Rank 1 starts after F and a transfer; after its last I come a transfer, I and W of rank 0.
  const Bound nested = bound_named("nested_window", two);
  EXPECT_EQ(nested.rank, 0);
  EXPECT_EQ(nested.other, 1);
  EXPECT_EQ(nested.value, (3 + 1) + 20 - 2 + (1 + 5 + 2));
}

// By hand: what rank 1 has left at the end of its last F. Its microbatches take 2 units of memory
// each before I (10) and 1 before W (4), of 8; the last one is back from rank 2 after 22, and its I
// ends after 32. With u microbatches before I, and as many others before W as fit, the Is take 10 u
// and the Ws 4 u + 4 (8 - 2 u). So 22, 12 or 2 are idle where u is 1, 2 or 3, and 28, 24 or 20 of
// the Ws may be left; with u = 4 there are 16 Ws. The least difference is 2 - 20.
TEST(BoundsTest, NestedWindowByHand) {
  const auto rest_with = [](int microbatches) {
    Problem problem =
        uniform(ir::Placement::loop(3, 3), microbatches, {1, 1, 1, 1, 1, 2, 1}, kNoLimit);
    problem.stages[1] = {10, 10, 4, 1, 1, 2, 1};
    problem.stages[2] = {10, 10, 0, 1, 1, 2, 1};
    problem.memory_limits[1] = 8;
    const Bound bound = bound_named("nested_window", problem);
    EXPECT_EQ(bound.rank, 0);
    EXPECT_EQ(bound.other, 1);
    return bound.terms[3];
  };
  // A mixture of u = 3 and u = 4 has 3.2 before I and leaves 4 (8 - 3.2) = 19.2, rounded.
  EXPECT_EQ(rest_with(12), (BoundTerm{"cool_down", -19}));
  // With laps, each u for itself.
  EXPECT_EQ(rest_with(13), (BoundTerm{"cool_down", -18}));
}

// By hand: V schedules whose rank 1 is slower on its first stage. It has memory for two whole
// microbatches (K = 2), so more than six have laps.
TEST(BoundsTest, LapsByHand) {
  Problem problem = uniform(ir::Placement::v(2, 4), 7, {7, 7, 1, 1, 1, 2, 1}, kNoLimit);
  problem.stages[1] = {10, 6, 3, 0, 1, 2, 1};
  problem.stages[2] = {4, 2, 1, 1, 0, 2, 1};
  problem.stages[3] = {17, 17, 0, 0, 1, 2, 1};
  problem.memory_limits[1] = 8;
  // The first I of rank 1 comes after 50. With one whole microbatch there is memory for two Fs of
  // 10 beside it: 16 are idle. With two, 50 - 28 = 22. But with one, the next I comes 42 later; by
  // then, after 92, its F, I and W (26) and the four Fs of 10 that fit are over: 26 are idle.
  // After the last F, 44 pass to the end of the last I. With one whole microbatch, and I and W of
  // 9 of two others, 44 - 12 - 18 are idle. With two, 44 - 24 = 20. But with one, its Fs came in
  // the 42 before: 44 + 42 - 26, and 4 * 9 that fit in memory.
  EXPECT_EQ(bound_named("nested_window", problem).terms,
            (std::vector<BoundTerm>{
                {"head", 8}, {"work", 7 * 26}, {"warm_up", 22}, {"cool_down", 20}, {"tail", 9}}));
  problem.num_microbatches = 6;
  EXPECT_EQ(bound_named("nested_window", problem).terms,
            (std::vector<BoundTerm>{
                {"head", 8}, {"work", 6 * 26}, {"warm_up", 16}, {"cool_down", 14}, {"tail", 9}}));
  // Compounds have no laps.
  problem.num_microbatches = 7;
  problem.overlap = 0.5;
  EXPECT_EQ(bound_named("nested_window", problem).terms[3], (BoundTerm{"warm_up", 16}));

  // An I on the first stage comes 66 after that on the last one, and a lap is 38. So two whole
  // microbatches have 2 (14 + 3) in the lap and keep 4 of the memory, which leaves room for two Fs:
  // 50 + 38 - 34 - 20 are idle. (With one: 50 + 38 - 17 - 30.)
  Problem late = uniform(ir::Placement::v(3, 6), 7, {1, 1, 1, 1, 1, 2, 1}, kNoLimit);
  late.stages[1] = {10, 6, 3, 1, 1, 2, 1};
  late.stages[2].gradient_transfer = 61;
  late.stages[4] = {4, 2, 1, 1, 1, 2, 1};
  late.stages[5] = {15, 15, 0, 0, 1, 2, 1};
  late.memory_limits[1] = 8;
  EXPECT_EQ(bound_named("nested_window", late).terms,
            (std::vector<BoundTerm>{
                {"head", 2}, {"work", 7 * 26}, {"warm_up", 34}, {"cool_down", 80}, {"tail", 3}}));
  // Likewise at the end, if F on the last stage comes long after that on the first: then 44 pass to
  // the end of the last I, and 44 + 38 - 2 (4 + 12) - 2 * 9 are idle. (With one: 82 - 16 - 3 * 9.)
  late.stages[2].gradient_transfer = 1;
  late.stages[2].output_transfer = 0;
  late.stages[3].output_transfer = 61;
  EXPECT_EQ(bound_named("nested_window", late).terms[3], (BoundTerm{"cool_down", 32}));
}

// By hand: 3 ranks, F 10, I 11, transfers 1. A first I that never waits comes 10, 33 and 56 after
// the first F of ranks 2, 1 and 0.
TEST(BoundsTest, FirstBackwardsByHand) {
  const auto with_memory_for = [](Memory limit) {
    return uniform(ir::Placement::loop(3, 3), 10, {10, 11, 5, 1, 1, 1, 1}, limit);
  };
  // Rank 1 idles for 3 after three Fs, or the I waits there for a fourth, comes to rank 0 after 63,
  // and finds it idle after six Fs for 3. Six Fs are all that fit.
  const Bound six = bound_named("first_backwards", with_memory_for(6));
  EXPECT_EQ(six.value, 10 * 26 + 3);
  EXPECT_EQ(six.terms, (std::vector<BoundTerm>{{"work", 260}, {"warm_up", 3}, {"cool_down", 0}}));
  EXPECT_EQ(bound_named("warm_up_and_cool_down", with_memory_for(6)).value, 260);
  // A seventh F fills rank 0 until 70.
  EXPECT_EQ(bound_named("first_backwards", with_memory_for(7)).value, 260);
  // After five Fs, rank 0 idles from 50 to 56.
  EXPECT_EQ(bound_named("first_backwards", with_memory_for(5)).value, 266);
  // With a V, no rank's first I comes after that of a rank that starts later.
  const Problem v = uniform(ir::Placement::v(3, 6), 10, {10, 11, 5, 1, 1, 1, 1}, 12);
  EXPECT_EQ(bound_named("first_backwards", v).value, work_bound(v).value);
  // Without equal Fs there is no grid to meet.
  Problem uneven = with_memory_for(6);
  uneven.microbatch_scale.assign(10, 1.0);
  uneven.microbatch_scale[3] = 1.1;
  EXPECT_EQ(bound_named("first_backwards", uneven).value, work_bound(uneven).value);
}

// Quotients are rounded up: 3 microbatches for 10 each, in memory for 2 that fills while an F runs
// and empties while a W runs.
TEST(BoundsTest, MemoryAreaIsRoundedUp) {
  const Problem problem = uniform(ir::Placement::loop(1, 1), 3, {3, 5, 2, 0, 0, 1, 1}, 2);
  EXPECT_EQ(bound_named("memory_area", problem).value, (3 * 10 + 3 + 2 + 1) / 2);
}

// By hand: whole microbatches in memory, of which V schedules have two activations per rank.
TEST(BoundsTest, WholeMicrobatchesByHand) {
  // Memory for one microbatch, so rank 1 runs F F I W I W of one after the other, and between its
  // second F and its first I the F and I of rank 0. The Ws of the last microbatch may be left.
  const Problem one = uniform(ir::Placement::v(2, 4), 4, {1, 1, 1, 0, 0, 1, 1}, 2);
  const Bound bound = bound_named("whole_microbatches", one);
  EXPECT_EQ(bound.rank, 0);
  EXPECT_EQ(bound.other, 1);
  EXPECT_EQ(bound.terms, (std::vector<BoundTerm>{
                             {"head", 1}, {"whole_microbatches", 4 * 8 - 2}, {"tail", 1 + 1}}));
  EXPECT_EQ(lower_bound(one).value, 33);  // the optimum
  // Memory for two: beside an F or I of the outer stage, or a W, there is only one. When the second
  // F of a stage starts, one microbatch at most is past the first F of the inner stage.
  const Problem two = uniform(ir::Placement::v(4, 8), 4, {93, 90, 47, 6, 6, 2, 1}, 8);
  const Ticks life = 4 * (93 + 90) + 6 * 6;
  const Ticks lost = (93 + 90) * ((4 + 1) + 1) + 47 * (2 * 4 - 8);
  EXPECT_EQ(bound_named("whole_microbatches", two).terms[1],
            (BoundTerm{"whole_microbatches", (4 * life + lost) / 2}));
  // On one rank the window is its own.
  const Bound own = bound_named("whole_microbatches",
                                uniform(ir::Placement::loop(1, 1), 2, {3, 5, 2, 0, 0, 1, 1}, 1));
  EXPECT_EQ(own.rank, 0);
  EXPECT_EQ(own.other, -1);
  EXPECT_EQ(own.terms, (std::vector<BoundTerm>{
                           {"head", 0}, {"whole_microbatches", 3 + 5 + 2 + 3 + 5}, {"tail", 2}}));
  // Memory that holds no microbatch, or more than there are.
  EXPECT_EQ(bound_named("whole_microbatches",
                        uniform(ir::Placement::v(2, 4), 4, {1, 1, 1, 0, 0, 1, 1}, 1))
                .value,
            0);
  EXPECT_EQ(bound_named("whole_microbatches",
                        uniform(ir::Placement::v(2, 4), 4, {1, 1, 1, 0, 0, 1, 1}, kNoLimit)),
            bound_named("whole_microbatches",
                        uniform(ir::Placement::v(2, 4), 4, {1, 1, 1, 0, 0, 1, 1}, 8)));
}

// The W after the tail may make a later rank the better outer one.
TEST(BoundsTest, TheOuterRankIsTheBestOne) {
  Problem problem = uniform(ir::Placement::loop(3, 3), 4, {1, 1, 1, 0, 0, 1, 1}, 8);
  EXPECT_EQ(bound_named("nested_window", problem).rank, 0);
  problem.stages[1].backward_weight = 5;
  problem.stages[2].forward = 100;
  const Bound bound = bound_named("nested_window", problem);
  EXPECT_EQ(bound.rank, 1);
  EXPECT_EQ(bound.other, 2);
  EXPECT_EQ(bound.terms.front(), (BoundTerm{"head", 1}));
  EXPECT_EQ(bound.terms.back(), (BoundTerm{"tail", 1 + 5}));
}

// Paths are those of the fastest microbatch and knapsacks those of the slowest: the first I of rank
// 0 comes 10 + 10 + 1 after its first F, and two Fs of the slowest microbatches take longer.
TEST(BoundsTest, MicrobatchesOfDifferentCosts) {
  Problem problem = uniform(ir::Placement::loop(2, 2), 3, {10, 1, 1, 0, 0, 1, 1}, 2);
  const auto warm_up = [&] { return bound_named("warm_up_and_cool_down", problem).terms[1]; };
  EXPECT_EQ(warm_up(), (BoundTerm{"warm_up", 1}));
  problem.microbatch_scale = {1, 2, 2};
  EXPECT_EQ(warm_up(), (BoundTerm{"warm_up", 0}));
  EXPECT_EQ(bound_named("one_microbatch", problem).value, 2 * (10 + 10 + 1 + 1 + 1));
}

// From F on the last stage to I on the first, which recomputes for long: what holds for the
// smallest microbatch must hold for the others.
TEST(ChainTest, TakesNoLessForALargerMicrobatch) {
  const StageWork first = {.forward = 10, .backward_input = 11, .recomputation = 10};
  const StageWork last = {.forward = 1, .backward_input = 1};
  const Problem problem = {.placement = ir::Placement::loop(2, 2),
                           .num_microbatches = 2,
                           .stages = {first, last},
                           .memory_limits = {kNoLimit, kNoLimit},
                           .microbatch_scale = {1, 3}};
  const Chain small(problem, 0), large(problem, 1);
  EXPECT_EQ(large.path(1, 0), 3 + 3 - 30);
  for (const int from : {0, 1}) {
    for (const int to : {0, 1}) EXPECT_LE(small.path(from, to), large.path(from, to));
  }
}

}  // namespace
}  // namespace pipewright::schedule
