#include "pipewright/ir/dependencies.h"

#include <gtest/gtest.h>

#include <vector>

#include "pipewright/ir/check.h"

namespace pipewright::ir {
namespace {

// Stages 0 1 2 3 on ranks 0 1 1 0.
const Placement kV = Placement::v(2, 4);

std::vector<Need> needs(ActionKind kind, int stage, int microbatch = 5) {
  const Needs found = needs_of(ActionPart(kind, stage, microbatch), kV);
  return {found.begin(), found.end()};
}

TEST(DependenciesTest, ForwardNeedsThePreviousStage) {
  EXPECT_EQ(needs(ActionKind::kForward, 0), (std::vector<Need>{}));
  EXPECT_EQ(needs(ActionKind::kForward, 1), (std::vector<Need>{{Result::kOutput, 0, 5, 0}}));
  EXPECT_EQ(needs(ActionKind::kForward, 3), (std::vector<Need>{{Result::kOutput, 2, 5, 1}}));
}

TEST(DependenciesTest, BackwardNeedsItsForwardAndTheNextStage) {
  for (const ActionKind kind : {ActionKind::kBackward, ActionKind::kBackwardInput}) {
    EXPECT_EQ(needs(kind, 3), (std::vector<Need>{{Result::kOutput, 3, 5, 0}}));
    EXPECT_EQ(needs(kind, 2),
              (std::vector<Need>{{Result::kOutput, 2, 5, 1}, {Result::kInputGradient, 3, 5, 0}}));
  }
}

TEST(DependenciesTest, WeightHalfNeedsTheInputHalf) {
  EXPECT_EQ(needs(ActionKind::kBackwardWeight, 1),
            (std::vector<Need>{{Result::kWeightInput, 1, 5, 1}}));
}

TEST(DependenciesTest, SendsNeedWhatTheySend) {
  EXPECT_EQ(needs(ActionKind::kSendF, 0), (std::vector<Need>{{Result::kOutput, 0, 5, 0}}));
  EXPECT_EQ(needs(ActionKind::kSendB, 3), (std::vector<Need>{{Result::kInputGradient, 3, 5, 0}}));
}

// Each result is produced by exactly the kinds that the table in dependencies.h names.
TEST(DependenciesTest, ResultsOfEachKind) {
  struct Case {
    ActionKind kind;
    bool output, input_gradient, weight_input;
  };
  for (const Case& one : {Case{ActionKind::kForward, true, false, false},
                          Case{ActionKind::kBackward, false, true, false},
                          Case{ActionKind::kBackwardInput, false, true, true},
                          Case{ActionKind::kBackwardWeight, false, false, false},
                          Case{ActionKind::kSendF, false, false, false},
                          Case{ActionKind::kUnshard, false, false, false}}) {
    EXPECT_EQ(makes(one.kind, Result::kOutput), one.output);
    EXPECT_EQ(makes(one.kind, Result::kInputGradient), one.input_gradient);
    EXPECT_EQ(makes(one.kind, Result::kWeightInput), one.weight_input);
  }
}

// As in torch.distributed.pipelining's has_comms: F, and B or I, if the neighbouring stage is on
// another rank; never W.
TEST(DependenciesTest, TransfersCrossRanksOnly) {
  using K = ActionKind;
  EXPECT_EQ(transfer_of(ActionPart(K::kForward, 0, 7), kV),
            (Transfer{ActionPart(K::kSendF, 0, 7), ActionPart(K::kRecvF, 1, 7), 0, 1}));
  EXPECT_FALSE(transfer_of(ActionPart(K::kForward, 1, 7), kV));  // stage 2 is on the same rank
  EXPECT_FALSE(transfer_of(ActionPart(K::kForward, 3, 7), kV));  // the last stage
  EXPECT_EQ(transfer_of(ActionPart(K::kBackwardInput, 3, 7), kV),
            (Transfer{ActionPart(K::kSendB, 3, 7), ActionPart(K::kRecvB, 2, 7), 0, 1}));
  EXPECT_FALSE(transfer_of(ActionPart(K::kBackward, 2, 7), kV));
  EXPECT_FALSE(transfer_of(ActionPart(K::kBackward, 0, 7), kV));
  EXPECT_FALSE(transfer_of(ActionPart(K::kBackwardWeight, 1, 7), kV));
}

// `2SEND_F5` runs on the rank of stage 2 and is paired with `3RECV_F5`; `2RECV_B5` receives from
// stage 3.
TEST(DependenciesTest, BothEndsFindTheSameTransfer) {
  using K = ActionKind;
  const Transfer forward{ActionPart(K::kSendF, 2, 5), ActionPart(K::kRecvF, 3, 5), 1, 0};
  EXPECT_EQ(partner_of(ActionPart(K::kSendF, 2, 5), kV), forward);
  EXPECT_EQ(partner_of(ActionPart(K::kRecvF, 3, 5), kV), forward);
  const Transfer backward{ActionPart(K::kSendB, 3, 5), ActionPart(K::kRecvB, 2, 5), 0, 1};
  EXPECT_EQ(partner_of(ActionPart(K::kSendB, 3, 5), kV), backward);
  EXPECT_EQ(partner_of(ActionPart(K::kRecvB, 2, 5), kV), backward);
}

TEST(DependenciesTest, NoPartnerBeyondTheEndsOfThePipeline) {
  using K = ActionKind;
  EXPECT_FALSE(partner_of(ActionPart(K::kSendF, 3, 0), kV));
  EXPECT_FALSE(partner_of(ActionPart(K::kRecvB, 3, 0), kV));
  EXPECT_FALSE(partner_of(ActionPart(K::kRecvF, 0, 0), kV));
  EXPECT_FALSE(partner_of(ActionPart(K::kSendB, 0, 0), kV));
  EXPECT_THROW(partner_of(ActionPart(K::kForward, 0, 0), kV), InternalError);
}

}  // namespace
}  // namespace pipewright::ir
