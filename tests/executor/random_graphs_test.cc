// Random models with random schedules, next to themselves without a pipeline. A model that cannot
// be trained without a pipeline must be an error with one.
//
// PIPEWRIGHT_FUZZ_PROGRAMS is the number of models, PIPEWRIGHT_FUZZ_FIRST the first seed.
#include <gtest/gtest.h>

#include "tests/executor/random_models.h"
#include "tests/executor/small_pipelines.h"
#include "tests/support/fuzz/fuzz.h"

namespace pipewright::executor {
namespace {

TEST(RandomGraphs, TrainLikeTheModelWithoutAPipeline) {
  constexpr int kRandomSteps = 2;
  int trained = 0, refused = 0;
  tests::for_each_seed(2000, [&](uint64_t seed) {
    const RandomCase drawn = draw_case(seed);
    const ir::Program& program = drawn.program;
    std::string without;
    Outcome expected;
    try {
      expected = train_plain(drawn.make(false), program.placement.num_stages(),
                             program.num_microbatches, kRandomSteps);
    } catch (const std::exception& error) {
      without = error.what();
    }
    std::vector<Outcome> found(2);
    const std::vector<std::string> errors = errors_of(2, [&](int rank, comms::World& world) {
      found[static_cast<size_t>(rank)] =
          train_rank_of(program, drawn.make(true), world, kRandomSteps);
    });
    if (!without.empty()) {
      ++refused;
      // The outputs of a checkpointed part require a gradient whatever is in it.
      if (drawn.checkpoints) return;
      for (const std::string& error : errors)
        EXPECT_NE(error, "") << "without: " << without << "\n" << drawn.description;
      return;
    }
    ++trained;
    EXPECT_EQ(errors, std::vector<std::string>(2)) << drawn.description;
    if (errors == std::vector<std::string>(2)) {
      EXPECT_EQ(difference(expected, sum_of_ranks(found)), "") << drawn.description;
    }
  });
  EXPECT_GT(trained, refused);
  std::printf("%d trained, %d refused\n", trained, refused);
}

}  // namespace
}  // namespace pipewright::executor
