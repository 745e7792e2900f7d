#include "examples/activation_memory.h"

#include <gtest/gtest.h>

namespace pipewright::examples {
namespace {

TEST(ActivationsThatFit, OnTheRankWithTheLeastRoom) {
  EXPECT_EQ(activations_that_fit({{"a", 1000, 0, 100}}, 16), 10);
  EXPECT_EQ(activations_that_fit({{"a", 1000, 250, 100}}, 16), 7);
  // Two ranks share host `a`; those of `b` need more per activation.
  EXPECT_EQ(activations_that_fit({{"a", 1000, 0, 100}, {"a", 1000, 120, 100}}, 16), 3);
  EXPECT_EQ(activations_that_fit({{"a", 1000, 0, 100}, {"b", 1000, 0, 300}}, 16), 3);
}

TEST(ActivationsThatFit, AllMicrobatchesIfThereIsRoom) {
  EXPECT_EQ(activations_that_fit({{"a", 1600, 0, 100}}, 16), std::nullopt);
  EXPECT_EQ(activations_that_fit({{"a", 1600, 1, 100}}, 16), 15);
}

// Training cannot do with less than one.
TEST(ActivationsThatFit, AtLeastOne) {
  EXPECT_EQ(activations_that_fit({{"a", 1000, 2000, 100}}, 16), 1);
}

TEST(ActivationMemory, ThereAndBack) {
  const ActivationMemory memory =
      activation_memory_from_text(to_text({"node-7", 135048892416, 3, 1234567.25}));
  EXPECT_EQ(memory.host, "node-7");
  EXPECT_EQ(memory.available, 135048892416);
  EXPECT_EQ(memory.reserved, 3);
  EXPECT_EQ(memory.per_activation, 1234567.25);
}

}  // namespace
}  // namespace pipewright::examples
