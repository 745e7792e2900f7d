#include "pipewright/schedule/views/table.h"

#include <gtest/gtest.h>

#include <sstream>

namespace pipewright::schedule {
namespace {

using ir::Action;
using ir::ActionKind;

std::string table(const ir::Rows& rows, const TableOptions& options = {}) {
  ir::Schedule schedule;
  schedule.rows = rows;
  std::ostringstream out;
  print_table(schedule, options, out);
  return out.str();
}

const ir::Rows kRows = {
    {Action(ActionKind::kForward, 0, 0), Action(ActionKind::kForward, 0, 1), Action()},
    {Action(), Action(ActionKind::kForward, 1, 0), Action(ActionKind::kBackward, 1, 0)}};

TEST(TableTest, OneLinePerStepAndOneColumnPerRank) {
  EXPECT_EQ(table(kRows),
            "        Rank 0 Rank 1\n"
            "Step 0: 0F0\n"
            "Step 1: 0F1    1F0\n"
            "Step 2:        1B0\n");
}

TEST(TableTest, StepNumbersHaveOneWidthAndShortRowsEndEarly) {
  ir::Rows rows = kRows;
  rows[0].resize(11);
  rows[1].pop_back();
  const std::string text = table(rows);
  EXPECT_TRUE(text.starts_with("         Rank 0 Rank 1\nStep 00: 0F0\n")) << text;
  EXPECT_TRUE(text.ends_with("\nStep 10:\n")) << text;
}

TEST(TableTest, RanksThatDoNotFitContinueBelow) {
  EXPECT_EQ(table(kRows, {20, false}),
            "        Rank 0\nStep 0: 0F0\nStep 1: 0F1\nStep 2:\n\n"
            "        Rank 1\nStep 0:\nStep 1: 1F0\nStep 2: 1B0\n");
  EXPECT_EQ(table(kRows, {21, false}), table(kRows));
  EXPECT_EQ(table(kRows, {1, false}), table(kRows, {20, false}));  // at least one rank per table
}

TEST(TableTest, ColorsDoNotMoveColumns) {
  EXPECT_EQ(table(kRows, {0, true}),
            "        Rank 0 Rank 1\n"
            "Step 0: \x1B[34m0F0\x1B[0m\n"
            "Step 1: \x1B[34m0F1\x1B[0m    \x1B[34m1F0\x1B[0m\n"
            "Step 2:        \x1B[32m1B0\x1B[0m\n");
}

TEST(TableTest, NoRanksPrintNothing) { EXPECT_EQ(table({}), ""); }

}  // namespace
}  // namespace pipewright::schedule
