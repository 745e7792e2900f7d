#include "pipewright/ir/schedule.h"

#include <gtest/gtest.h>

namespace pipewright::ir {
namespace {

Schedule schedule_of(const Row& row) {
  return {.name = "",
          .placement = Placement::loop(2, 2),
          .num_microbatches = 1,
          .lowering = {},
          .rows = {{Action(ActionKind::kForward, 0, 0)}, row}};
}

TEST(HasBackward, AnyOfBInputAndWeightCounts) {
  for (const ActionKind kind :
       {ActionKind::kBackward, ActionKind::kBackwardInput, ActionKind::kBackwardWeight}) {
    EXPECT_TRUE(has_backward(schedule_of({Action(kind, 1, 0)}))) << info(kind).token;
    EXPECT_TRUE(
        has_backward(schedule_of({Action::overlap({ActionKind::kForward, 1, 1}, {kind, 1, 0})})))
        << info(kind).token;
  }
}

TEST(HasBackward, IsFalseOfForwardsIdleSlotsAndCommunication) {
  EXPECT_FALSE(has_backward(schedule_of({})));
  EXPECT_FALSE(has_backward(
      schedule_of({Action(), Action(ActionKind::kUnshard, 1), Action(ActionKind::kRecvF, 1, 0),
                   Action(ActionKind::kForward, 1, 0), Action(ActionKind::kRecvB, 1, 0),
                   Action(ActionKind::kSendB, 1, 0), Action(ActionKind::kReduceGrad, 1),
                   Action(ActionKind::kReshard, 1)})));
}

// Each row of the table: its choices and numbers are read, and written as they were read.
TEST(LoweringTest, PoliciesTakeTheirValuesOnly) {
  for (const LoweringPolicy& policy : lowering_policies()) {
    const auto& [kind, choices, least] = policy.values;
    std::vector<std::string> values(choices.begin(), choices.end());
    if (kind == PolicyKind::kFlag) values = {"true", "false"};
    if (kind == PolicyKind::kCount || kind == PolicyKind::kCounts)
      values.insert(values.end(), {std::to_string(least), "7"});
    if (kind == PolicyKind::kCounts) values.emplace_back("2,3,4");
    EXPECT_GE(values.size(), 2U) << policy.name;
    for (const std::string& value : values) {
      Lowering lowering;
      EXPECT_TRUE(policy.set(lowering, value)) << policy.name << ": " << value;
      EXPECT_EQ(policy.get(lowering), value) << policy.name;
    }
    for (const std::string& value : {std::string("other"), std::to_string(least - 1)}) {
      Lowering lowering;
      EXPECT_FALSE(policy.set(lowering, value)) << policy.name << ": " << value;
      EXPECT_EQ(lowering, Lowering());
    }
  }
}

}  // namespace
}  // namespace pipewright::ir
