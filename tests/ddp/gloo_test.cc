// Runs tests of replicate on ranks that are processes, over Gloo.
#include <gtest/gtest.h>

#include <string>

#include "tests/support/training/over_gloo.h"

namespace pipewright::tests {
namespace {

void run(int ranks, const std::string& filter, int runs) {
  expect_over_gloo(ranks, "tests/ddp/replicate_training_test", filter, runs);
}

// Three shapes.
TEST(ReplicateOverGloo, SingleGroup) { run(2, "*test_train_parity_single_group", 3); }
TEST(ReplicateOverGloo, MultiGroup) { run(4, "*test_train_parity_multi_group/*where", 2); }
// Three tables.
TEST(ReplicateOverGloo, GradientAccumulation) { run(2, "*test_gradient_accumulation", 3); }
// With explicit unshard and without.
TEST(ReplicateOverGloo, OneForwardOneBackward) { run(4, "*test_1f1b_microbatching", 2); }
// With and without checkpointing.
TEST(ReplicateOverGloo, SharedParameters) { run(4, "*with_shared_params", 2); }
// Six groupings, checkpointed in three ways, with dropout.
TEST(ReplicateOverGloo, Checkpointing) { run(2, "*with_activation_checkpointing", 18); }

TEST(ReplicateOverGloo, RankThatDies) {
  const Output output = launch_tests(2, "tests/ddp/replicate_errors_test", "*RankThatDies");
  EXPECT_NE(output.status, 0);
  EXPECT_EQ(count(output.text, "[0] replicate: the reduction of `"), 1) << output.text;
  EXPECT_EQ(count(output.text, "over Gloo: RankThatDies"), 1) << output.text;
}

}  // namespace
}  // namespace pipewright::tests
