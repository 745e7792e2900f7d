// The dispatcher on random problems with random templates.
#include "pipewright/schedule/search/dispatcher.h"

#include <gtest/gtest.h>

#include <string>

#include "pipewright/schedule/search/replay.h"
#include "pipewright/schedule/search/templates.h"
#include "tests/schedule/search/random_problem.h"

namespace pipewright::schedule::search {
namespace {

// Whatever the template: every letter once per microbatch, memory within the limits, and a replay
// that ends no later than the dispatcher says.
void expect_complete_schedules_that_fit(double overlap) {
  std::mt19937 problems(2);
  Random random(3);
  int finished = 0, compounds = 0;
  for (int run = 0; run < 400; ++run) {
    Problem problem = tests::random_problem(&problems);
    problem.overlap = overlap;
    Dispatcher dispatcher(problem);
    Replay replay(problem);
    Template numbers = random_template(problem, &random);
    for (int k = 0; k < 10; ++k, numbers = mutated(problem, numbers, &random)) {
      const auto cost = dispatcher.run(numbers, WakeQueue::kAsleep);
      if (!cost) continue;  // it may run into a dead end where memory is tight
      ++finished;
      const Words& words = dispatcher.words();
      std::vector<int> count(3 * static_cast<size_t>(problem.num_stages()));
      for (const Word& word : words) {
        for (const Letter one : word) ++count[plain(one)];
      }
      for (size_t one = 0; one < count.size(); ++one) {
        const bool is_used =
            problem.splits_backward || pass_of(static_cast<Letter>(one)) != Pass::kWeight;
        ASSERT_EQ(count[one], is_used ? problem.num_microbatches : 0);
      }
      ASSERT_TRUE(fits_memory(problem, words));
      ASSERT_TRUE(replay.run(words));
      ASSERT_LE(replay.cost(), *cost);
      // A limit on the cost changes nothing but whether there is a result.
      const Words copy = words;
      ASSERT_EQ(dispatcher.run(numbers, *cost), cost);
      ASSERT_EQ(dispatcher.words(), copy);
      ASSERT_EQ(dispatcher.run(numbers, *cost - 1), std::nullopt);
      compounds += has_compound(copy);
    }
  }
  EXPECT_GT(finished, 3000);
  EXPECT_EQ(compounds > 1000, overlap > 0) << compounds;
}

TEST(Dispatcher, MakesCompleteSchedulesThatFit) { expect_complete_schedules_that_fit(0); }
TEST(Dispatcher, MakesCompleteSchedulesOfCompoundsThatFit) {
  expect_complete_schedules_that_fit(0.6);
}

// ZB-H1's rule, F while fewer than P - r microbatches are in flight: (P - 1)(F + I - W) of idle
// time at any costs with F >= W, and P live activations (arXiv 2401.10241).
TEST(Dispatcher, MakesZbH1) {
  for (const int ranks : {2, 4, 8}) {
    Problem problem;
    problem.placement = ir::Placement::loop(ranks, ranks);
    problem.num_microbatches = 3 * ranks;
    problem.stages.assign(static_cast<size_t>(ranks), {.forward = 10,
                                                       .backward_input = 11,
                                                       .backward_weight = 7,
                                                       .activation = 1,
                                                       .weight_input = 1});
    problem.memory_limits.assign(static_cast<size_t>(ranks), ranks);
    Dispatcher dispatcher(problem);
    const Template numbers = {.pass_delay = {0, 0},
                              .turn_delay = {0},
                              .cap_slope = Template::kOne,
                              .backward_first = true};
    EXPECT_EQ(dispatcher.run(numbers, WakeQueue::kAsleep),
              problem.num_microbatches * 28 + (ranks - 1) * (10 + 11 - 7));
  }
}

// One rank, all times 1, so a period of 3, and I of microbatch 0 due at 1 + 1.5. The next F is due
// at 3, or at 1.5 if pairs are closer by half a period.
TEST(Dispatcher, BunchesMicrobatches) {
  const Problem problem = {
      .placement = ir::Placement::loop(1, 1),
      .num_microbatches = 4,
      .stages = {{.forward = 10, .backward_input = 10, .backward_weight = 10, .activation = 1}},
      .memory_limits = {kNoLimit}};
  Dispatcher dispatcher(problem);
  Template numbers = {.pass_delay = {0, 0}, .turn_delay = {Template::kOne * 3 / 2}};
  const auto order = [&] {
    EXPECT_EQ(dispatcher.run(numbers, WakeQueue::kAsleep), 120);
    std::string text;
    for (const Letter one : dispatcher.words()[0]) text += "FIW"[static_cast<int>(pass_of(one))];
    return text;
  };
  EXPECT_EQ(order(), "FIFIFIFIWWWW");
  numbers.group = 2;
  numbers.bunch = Template::kOne / 2;
  EXPECT_EQ(order(), "FFIIFFIIWWWW");
  numbers.group = 4;
  EXPECT_EQ(order(), "FFIFIFIIWWWW");
}

// Two stages on one rank, all times 1, two microbatches.
class TwoStages {
 public:
  explicit TwoStages(Memory limit) {
    problem_.placement = ir::Placement::loop(1, 2);
    problem_.num_microbatches = 2;
    problem_.stages.assign(2, {.forward = 10,
                               .backward_input = 10,
                               .backward_weight = 10,
                               .activation = 1,
                               .weight_input = 1});
    problem_.memory_limits = {limit};
  }
  // The rank's word, as in "0F 1F".
  std::string word(const Template& numbers) const {
    Dispatcher dispatcher(problem_);
    EXPECT_EQ(dispatcher.run(numbers, WakeQueue::kAsleep), 120);
    std::string text;
    for (const Letter one : dispatcher.words()[0]) {
      if (!text.empty()) text += ' ';
      text += std::to_string(stage_of(one)) + "FIW"[static_cast<int>(pass_of(one))];
    }
    return text;
  }

 private:
  Problem problem_;
};

// I of microbatch 0 is due 6 after its forwards, and a period is 6: the targets say that the
// forwards of microbatch 1 come first. backward_first does not ask them: Is come first, then later
// stages.
TEST(Dispatcher, PutsBackwardsFirst) {
  Template numbers = {.pass_delay = {0, 0, 0, 0}, .turn_delay = {0, 6 * Template::kOne, 0}};
  const TwoStages problem(kNoLimit);
  EXPECT_EQ(problem.word(numbers), "0F 1F 0F 1F 1I 0I 1I 0I 1W 0W 1W 0W");
  numbers.backward_first = true;
  EXPECT_EQ(problem.word(numbers), "0F 1F 1I 0I 0F 1F 1I 0I 1W 0W 1W 0W");
}

// F of stage 0 keeps memory for two forwards of stage 1. Of microbatch 1 only one is left, so it
// fits into a memory of 4 beside the two Ws of microbatch 0; into 3 it does not, and a W goes
// first.
TEST(Dispatcher, KeepsMemoryForForwardsThatAreLeft) {
  const Template numbers = {
      .pass_delay = {0, 0, 0, 0}, .turn_delay = {0, 0, 0}, .reserve_base = 2 * Template::kOne};
  EXPECT_EQ(TwoStages(4).word(numbers), "0F 1F 1I 0I 0F 1F 1I 0I 1W 0W 1W 0W");
  EXPECT_EQ(TwoStages(3).word(numbers), "0F 1F 1I 0I 1W 0F 1F 1I 0I 0W 1W 0W");
}

TEST(WakeQueue, ReturnsTheEarliestRank) {
  std::mt19937 random(4);
  for (const int ranks : {1, 2, 3, 8, 100}) {
    WakeQueue queue(ranks);
    std::vector<Ticks> times(static_cast<size_t>(ranks), WakeQueue::kAsleep);
    EXPECT_TRUE(queue.empty());
    for (int step = 0; step < 1000; ++step) {
      const auto rank = random() % static_cast<unsigned>(ranks);
      const Ticks time = random() % 5 == 0 ? WakeQueue::kAsleep : random() % 50;
      if (random() % 2 == 0 && time != WakeQueue::kAsleep) {
        queue.wake_by(static_cast<int>(rank), time);
        times[rank] = std::min(times[rank], time);
      } else {
        queue.set(static_cast<int>(rank), time);
        times[rank] = time;
      }
      const auto least = std::ranges::min_element(times);
      ASSERT_EQ(queue.empty(), *least == WakeQueue::kAsleep);
      if (queue.empty()) continue;
      ASSERT_EQ(queue.time(), *least);
      ASSERT_EQ(queue.rank(), least - times.begin());
    }
  }
}

}  // namespace
}  // namespace pipewright::schedule::search
