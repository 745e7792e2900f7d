// The executor over Gloo, with ranks as processes started by `pipewright launch`.
#include <gtest/gtest.h>

#include <string>

#include "tests/support/shell/shell.h"

namespace pipewright::tests {
namespace {

Output launch(int ranks, const std::string& mode) {
  const std::string command = "cli/pipewright launch -n " + std::to_string(ranks) +
                              " -- tests/executor/gloo_worker " + mode + " 2>&1";
  return run_shell(command);
}

class Gloo : public testing::TestWithParam<int> {};

TEST_P(Gloo, EveryScheduleEqualsTheModelWithoutAPipeline) {
  const Output output = launch(GetParam(), "parity");
  EXPECT_EQ(output.status, 0) << output.text;
  // 18 schedules, two models, each rank.
  EXPECT_EQ(count(output.text, " mlp equal\n"), 18 * GetParam()) << output.text;
  EXPECT_EQ(count(output.text, " transformer equal\n"), 18 * GetParam()) << output.text;
}

INSTANTIATE_TEST_SUITE_P(Ranks, Gloo, testing::Values(2, 4));

TEST(GlooRandomModels, EqualThemselvesWithoutAPipeline) {
  const Output output = launch(2, "random 150");
  EXPECT_EQ(output.status, 0) << output.text;
  EXPECT_EQ(count(output.text, "150 models equal\n"), 2) << output.text;
}

// What is sent is freed when it has been sent, so memory is what the certificate says, for messages
// of 64 KiB and of 8 KiB, and step 1,000 needs what step 10 needs.
TEST(GlooMemory, PeakEqualsTheCertificate) {
  for (const char* arguments : {"16384 12 20", "2048 4 1000"}) {
    const Output output = launch(2, std::string("memory ") + arguments);
    EXPECT_EQ(output.status, 0) << output.text;
  }
}

// A rank does not run ahead of a slower one without a bound.
TEST(GlooMemory, OfAnEvaluationIsBounded) {
  const Output output = launch(2, "evaluation");
  EXPECT_EQ(output.status, 0) << output.text;
}

TEST(GlooErrors, AFailingActionEndsTheStepOnEveryRank) {
  const Output output = launch(3, "throw");
  EXPECT_NE(output.status, 0);
  for (const char* rank : {"0", "1", "2"}) {
    EXPECT_EQ(count(output.text,
                    "[" + std::string(rank) + "] rank 2, step 1, action 2 `2F0`: out of luck\n"),
              1)
        << output.text;
  }
}

TEST(GlooErrors, ALostPeerEndsTheStepOnEveryOther) {
  const Output output = launch(3, "die");
  EXPECT_NE(output.status, 0);
  // The first rank to notice names what it waited for; the other reports the same first cause.
  EXPECT_GE(count(output.text, "[0] rank "), 1) << output.text;
  EXPECT_GE(count(output.text, "[1] rank "), 1) << output.text;
  EXPECT_GE(count(output.text, "` of rank 2: "), 1) << output.text;
}

}  // namespace
}  // namespace pipewright::tests
