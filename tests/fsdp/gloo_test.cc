// Tests of fully_shard with ranks as processes, over Gloo.
#include <gtest/gtest.h>

#include <string>

#include "tests/support/training/over_gloo.h"

namespace pipewright::tests {
namespace {

void run(int ranks, const std::string& filter, int runs) {
  expect_over_gloo(ranks, "tests/fsdp/fully_shard_test", filter, runs);
}

// Three shapes.
TEST(FullyShardOverGloo, SingleGroup) { run(2, "*test_train_parity_single_group_shard_dim0", 3); }
TEST(FullyShardOverGloo, LargestDim) { run(4, "*single_group_shard_largest_dim", 1); }
// Three options, with and without delays.
TEST(FullyShardOverGloo, MultiGroup) { run(4, "*test_train_parity_multi_group/*where", 6); }
// Eleven rows of the table, and six with shards on the host.
TEST(FullyShardOverGloo, GradientAccumulation) { run(4, "*test_gradient_accumulation", 17); }
TEST(FullyShardOverGloo, OneForwardOneBackward) { run(4, "*test_1f1b_microbatching", 4); }
// Two options, two vocabularies, with and without checkpointing.
TEST(FullyShardOverGloo, SharedParameters) { run(4, "*with_shared_params", 8); }
// Four groupings, two options, checkpointed in three ways, with dropout.
TEST(FullyShardOverGloo, Checkpointing) { run(2, "*with_activation_checkpointing", 24); }

// Sharded in two ways, and replicated.
TEST(OverGloo, FailedBackward) {
  expect_over_gloo(2, "tests/fsdp/failed_backward_test", "*Sharded:*Replicated", 3);
}

}  // namespace
}  // namespace pipewright::tests
