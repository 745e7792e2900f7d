// Repetition: what is made from a schedule for few microbatches is complete, keeps to the memory,
// and costs only the work that it adds where the short schedule has a period.
#include "pipewright/schedule/search/repeat.h"

#include <gtest/gtest.h>

#include "pipewright/schedule/bounds/bounds.h"
#include "pipewright/schedule/search/catalogue.h"
#include "pipewright/schedule/search/replay.h"
#include "pipewright/schedule/search/search.h"

namespace pipewright::schedule::search {
namespace {

Problem problem_for(const ir::Placement& placement, int num_microbatches, double activations) {
  return make_problem(
      placement, num_microbatches,
      {.forward = 3, .backward_input = 4, .backward_weight = 2, .link = {.latency = 0.5}},
      {.activations = activations});
}

TEST(BriefMicrobatches, LeavesOutWholeGroups) {
  const auto brief = [](int ranks, int microbatches) {
    return brief_microbatches(problem_for(ir::Placement::loop(ranks, ranks), microbatches, 9));
  };
  EXPECT_EQ(brief(8, 63), 63);  // few enough
  EXPECT_EQ(brief(8, 7), 7);
  for (int microbatches = 64; microbatches < 5000; microbatches += 17) {
    EXPECT_GE(brief(8, microbatches), 32);
    EXPECT_LT(brief(8, microbatches), 48);
    EXPECT_EQ((microbatches - brief(8, microbatches)) % 16, 0);
  }
  Problem uneven = problem_for(ir::Placement::loop(2, 2), 4000, 9);
  uneven.microbatch_scale.assign(4000, 1.5);
  EXPECT_EQ(brief_microbatches(uneven), 4000);
}

TEST(Repeat, CostsTheWorkOfWhatItAdds) {
  int repeated = 0;
  for (const ir::Placement& placement :
       {ir::Placement::loop(4, 4), ir::Placement::v(4, 8), ir::Placement::loop(4, 8)}) {
    const Problem brief = problem_for(placement, 20, 100), longer = problem_for(placement, 92, 100);
    for (const Candidate& named : catalogue(brief)) {
      SCOPED_TRACE(named.name);
      Replay short_run(brief), long_run(longer);
      ASSERT_TRUE(short_run.run(named.words));
      const auto words = repeat(brief, named.words, longer, 100'000'000);
      if (!words) continue;
      ++repeated;
      ASSERT_TRUE(long_run.run(*words));
      for (size_t rank = 0; rank < words->size(); ++rank)
        EXPECT_EQ((*words)[rank].size(), named.words[rank].size() / 20 * 92);
      EXPECT_EQ(peak_memory(longer, *words), peak_memory(brief, named.words));
      const Ticks work = work_bound(longer).value - work_bound(brief).value;
      EXPECT_GE(long_run.cost(), work_bound(longer).value);
      // These have a period without idle time.
      if (named.name == "1F1B" || named.name == "ZB-H1" || named.name == "ZB-H2") {
        EXPECT_EQ(long_run.cost(), short_run.cost() + work);
      }
    }
  }
  EXPECT_GT(repeated, 8);
}

TEST(Repeat, NeedsAPartWithEveryLetter) {
  const Problem brief = problem_for(ir::Placement::loop(4, 4), 20, 100),
                longer = problem_for(ir::Placement::loop(4, 4), 52, 100);
  Words in_turn;  // all Fs, then all Is, then all Ws
  for (int stage = 0; stage < 4; ++stage) {
    Word& word = in_turn.emplace_back();
    for (const Pass pass : {Pass::kForward, Pass::kInput, Pass::kWeight})
      word.insert(word.end(), 20, letter(stage, pass));
  }
  ASSERT_TRUE(Replay(brief).run(in_turn));
  EXPECT_FALSE(repeat(brief, in_turn, longer, 100'000'000));
}

// The bound is met for few microbatches, so it is for thousands, at a budget for five schedules of
// full length.
TEST(Repeat, ThousandsOfMicrobatches) {
  const SearchRequest request = {.placement = ir::Placement::v(8, 16),
                                 .num_microbatches = 2000,
                                 .costs = {.forward = 9.261,
                                           .backward_input = 9.043,
                                           .backward_weight = 4.6685,
                                           .link = {.latency = 0.601}},
                                 .memory = {.activations = 5},
                                 .evaluations = 500'000};
  const SearchResult found = search_schedule(request);
  EXPECT_EQ(found.gap(), 0);
  EXPECT_EQ(found.found_by, "search");
}

}  // namespace
}  // namespace pipewright::schedule::search
