#include "pipewright/comms/gloo/kept_memory.h"

#include <gtest/gtest.h>

namespace pipewright::comms {
namespace {

TEST(KeptMemory, TakesTheSmallestThatFits) {
  KeptMemory memory;
  const at::Tensor small = memory.take(10), large = memory.take(1000);
  EXPECT_GE(small.nbytes(), 10u);
  EXPECT_GE(large.nbytes(), 1000u);
  memory.give_back(small);
  memory.give_back(large);
  const at::Tensor again = memory.take(10);
  EXPECT_TRUE(again.is_same(small));
  EXPECT_TRUE(memory.take(11).is_same(large));
  EXPECT_FALSE(memory.take(1).is_same(small));  // both are taken
}

TEST(KeptMemory, KeepsTheTwoLargest) {
  KeptMemory memory;
  const at::Tensor tensors[] = {memory.take(30), memory.take(10), memory.take(20)};
  for (const at::Tensor& tensor : tensors) memory.give_back(tensor);
  EXPECT_TRUE(memory.take(1).is_same(tensors[2]));
  EXPECT_TRUE(memory.take(1).is_same(tensors[0]));
  EXPECT_FALSE(memory.take(1).is_same(tensors[1]));
}

}  // namespace
}  // namespace pipewright::comms
