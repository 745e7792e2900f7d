// Tests of fully_shard_test on ranks that are processes, over Gloo.
#include <gtest/gtest.h>

#include <string>

#include "tests/shell/shell.h"

namespace pipewright::tests {
namespace {

// Runs the tests of a filter on so many processes; `runs` is how often each rank trains in them.
void run(int ranks, const std::string& filter, int runs) {
  const Output output =
      run_shell("cli/pipewright launch -n " + std::to_string(ranks) +
                " -- tests/fsdp/fully_shard_test --gtest_filter='" + filter + "' 2>&1");
  EXPECT_EQ(output.status, 0) << output.text;
  EXPECT_EQ(count(output.text, "over Gloo: "), ranks * runs) << output.text;
}

// Three shapes.
TEST(FullyShardOverGloo, SingleGroup) { run(2, "*test_train_parity_single_group_shard_dim0", 3); }
TEST(FullyShardOverGloo, LargestDim) { run(4, "*single_group_shard_largest_dim", 1); }
// Three options, with and without delays.
TEST(FullyShardOverGloo, MultiGroup) { run(4, "*test_train_parity_multi_group/*", 6); }
// Eleven rows of the table.
TEST(FullyShardOverGloo, GradientAccumulation) { run(4, "*test_gradient_accumulation", 11); }
TEST(FullyShardOverGloo, OneForwardOneBackward) { run(4, "*test_1f1b_microbatching", 4); }
TEST(FullyShardOverGloo, SharedParameters) { run(4, "*with_shared_params", 4); }

}  // namespace
}  // namespace pipewright::tests
