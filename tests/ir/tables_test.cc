#include "pipewright/ir/tables.h"

#include <gtest/gtest.h>

namespace pipewright::ir {
namespace {

TEST(StageMicrobatchTable, HasOneCellPerStageAndMicrobatch) {
  StageMicrobatchTable<int> table(Placement::loop(2, 4), 3, -1);
  ASSERT_EQ(table.size(), 12U);
  for (int stage = 0; stage < 4; ++stage) {
    for (int microbatch = 0; microbatch < 3; ++microbatch) {
      EXPECT_EQ(table.at(stage, microbatch), -1);
      table.at(stage, microbatch) = 10 * stage + microbatch;
    }
  }
  const StageMicrobatchTable<int>& written = table;
  for (int stage = 0; stage < 4; ++stage) {
    for (int microbatch = 0; microbatch < 3; ++microbatch) {
      EXPECT_EQ(written.at(stage, microbatch), 10 * stage + microbatch);
      EXPECT_EQ(written[written.index(stage, microbatch)], 10 * stage + microbatch);
    }
  }
}

TEST(StageMicrobatchTable, StoresBits) {
  StageMicrobatchTable<bool> table(Placement::loop(1, 2), 2);
  table.at(1, 0) = true;
  EXPECT_FALSE(table.at(0, 0));
  EXPECT_FALSE(table.at(0, 1));
  EXPECT_TRUE(table.at(1, 0));
}

TEST(StageMicrobatchTable, IsEmptyWithoutStagesOrMicrobatches) {
  EXPECT_EQ(StageMicrobatchTable<int>().size(), 0U);
  EXPECT_EQ(StageMicrobatchTable<int>(Placement(), 4).size(), 0U);
  EXPECT_EQ(StageMicrobatchTable<int>(Placement::loop(1, 1), 0).size(), 0U);
}

TEST(StageMicrobatchTable, ThrowsOnAShapeThatNoScheduleCanHave) {
  EXPECT_THROW(StageMicrobatchTable<int>(Placement::loop(1, 1), -1), InternalError);
  EXPECT_THROW(StageMicrobatchTable<int>(Placement::loop(1, 1), kMaxMicrobatches + 1),
               InternalError);
}

}  // namespace
}  // namespace pipewright::ir
