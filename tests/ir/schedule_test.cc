#include "pipewright/ir/schedule.h"

#include <gtest/gtest.h>

namespace pipewright::ir {
namespace {

Schedule schedule_of(const Row& row) {
  return {"", Placement::loop(2, 2), 1, {}, {}, {{Action(ActionKind::kForward, 0, 0)}, row}};
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

}  // namespace
}  // namespace pipewright::ir
