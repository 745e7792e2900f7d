// Tests of replicate_test on ranks that are processes, over Gloo.
#include <gtest/gtest.h>

#include <string>

#include "tests/shell/shell.h"

namespace pipewright::tests {
namespace {

Output launch(int ranks, const std::string& filter) {
  const std::string command = "cli/pipewright launch -n " + std::to_string(ranks) +
                              " -- tests/ddp/replicate_test --gtest_filter='" + filter + "' 2>&1";
  return run_shell(command);
}

// Runs the tests of a filter on so many processes; `runs` is how often each rank trains in them.
void run(int ranks, const std::string& filter, int runs) {
  const Output output = launch(ranks, filter);
  EXPECT_EQ(output.status, 0) << output.text;
  EXPECT_EQ(count(output.text, "over Gloo: "), ranks * runs) << output.text;
}

// Three shapes.
TEST(ReplicateOverGloo, SingleGroup) { run(2, "*test_train_parity_single_group", 3); }
TEST(ReplicateOverGloo, MultiGroup) { run(4, "*test_train_parity_multi_group*", 2); }
// Three tables.
TEST(ReplicateOverGloo, GradientAccumulation) { run(2, "*test_gradient_accumulation", 3); }
TEST(ReplicateOverGloo, OneForwardOneBackward) { run(4, "*test_1f1b_microbatching", 1); }
// With and without checkpointing.
TEST(ReplicateOverGloo, SharedParameters) { run(4, "*with_shared_params", 2); }

TEST(ReplicateOverGloo, ARankThatDies) {
  const Output output = launch(2, "*ARankThatDies");
  EXPECT_NE(output.status, 0);
  EXPECT_EQ(count(output.text, "[0] replicate: the reduction of `"), 1) << output.text;
  EXPECT_EQ(count(output.text, "over Gloo: ARankThatDies"), 1) << output.text;
}

}  // namespace
}  // namespace pipewright::tests
