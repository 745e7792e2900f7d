#include "pipewright/schedule/graph/tensor_table.h"

#include <gtest/gtest.h>

namespace pipewright::schedule {
namespace {

template <typename Value>
void expect_that_each_tensor_has_a_value_of_its_own() {
  for (const int microbatches : {1, 7, 8, 9, 16, 33}) {
    TensorTable<Value> table(3, microbatches, Value(-1));
    Value next = 0;
    for (uint32_t flow = 0; flow < 3; ++flow) {
      for (int microbatch = 0; microbatch < microbatches; ++microbatch) {
        ASSERT_EQ(table.at(flow, microbatch), Value(-1));
        table.fetch_ahead(flow, microbatch);  // the last microbatch has no next one
        table.at(flow, microbatch) = next++;
      }
    }
    next = 0;
    for (uint32_t flow = 0; flow < 3; ++flow) {
      for (int microbatch = 0; microbatch < microbatches; ++microbatch)
        ASSERT_EQ(table.at(flow, microbatch), next++);
    }
  }
}

TEST(TensorTableTest, EachTensorHasAValueOfItsOwn) {
  expect_that_each_tensor_has_a_value_of_its_own<uint32_t>();
  expect_that_each_tensor_has_a_value_of_its_own<double>();
}

// Lines of neighbouring flows are neighbours, for the same microbatches.
TEST(TensorTableTest, IsOrderedByMicrobatchFirst) {
  TensorTable<double> table(5, 20, 0);
  const auto distance = [&](uint32_t flow, int microbatch) {
    return &table.at(flow, microbatch) - &table.at(0, 0);
  };
  EXPECT_EQ(distance(0, 7), 7);
  EXPECT_EQ(distance(1, 0), 8);
  EXPECT_EQ(distance(4, 7), 39);
  EXPECT_EQ(distance(0, 8), 40);
}

TEST(TensorTableTest, NoFlows) { TensorTable<double>(0, 10, 0); }

}  // namespace
}  // namespace pipewright::schedule
