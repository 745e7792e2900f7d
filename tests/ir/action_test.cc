#include "pipewright/ir/action.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

namespace pipewright::ir {
namespace {

TEST(ActionTest, StoresTheLargestIndices) {
  const ActionPart part(ActionKind::kRecvB, kMaxStages - 1, kMaxMicrobatches - 1);
  EXPECT_EQ(part.kind(), ActionKind::kRecvB);
  EXPECT_EQ(part.stage(), kMaxStages - 1);
  EXPECT_EQ(part.microbatch(), kMaxMicrobatches - 1);
}

TEST(ActionTest, FieldsDoNotOverlap) {
  const ActionPart stage(ActionKind::kForward, kMaxStages - 1, 0);
  EXPECT_EQ(stage.microbatch(), 0);
  EXPECT_EQ(stage.kind(), ActionKind::kForward);
  const ActionPart microbatch(ActionKind::kForward, 0, kMaxMicrobatches - 1);
  EXPECT_EQ(microbatch.stage(), 0);
  EXPECT_EQ(microbatch.kind(), ActionKind::kForward);
}

TEST(ActionTest, NumberOfParts) {
  EXPECT_TRUE(Action().is_idle());
  EXPECT_EQ(Action().parts().size(), 0u);
  const Action forward(ActionKind::kForward, 0, 0);
  EXPECT_EQ(forward.parts().size(), 1u);
  EXPECT_FALSE(forward.is_compound());
  const Action compound = Action::overlap(ActionPart(ActionKind::kForward, 0, 1),
                                          ActionPart(ActionKind::kBackward, 1, 0));
  EXPECT_EQ(compound.parts().size(), 2u);
  EXPECT_TRUE(compound.is_compound());
}

TEST(ActionKindTest, TokensAreUniqueAndMapToTheirKind) {
  std::set<std::string_view> tokens;
  for (const ActionKindInfo& row : action_kinds()) {
    EXPECT_TRUE(tokens.insert(row.token).second) << row.token;
    EXPECT_EQ(kind_of_token(row.token), row.kind) << row.token;
    EXPECT_EQ(info(row.kind).token, row.token);
  }
  EXPECT_EQ(tokens.size(), 15u);
  EXPECT_FALSE(kind_of_token(""));
  EXPECT_FALSE(kind_of_token("BW"));
  EXPECT_FALSE(kind_of_token("f"));
}

// torch.distributed.pipelining's is_compute_op: F, B, I, W and OVERLAP_F_B.
TEST(ActionKindTest, ComputeKindsMatchPyTorch) {
  std::set<std::string_view> compute;
  for (const ActionKindInfo& row : action_kinds()) {
    if (is_compute(row.kind)) compute.insert(row.token);
  }
  EXPECT_EQ(compute, (std::set<std::string_view>{"B", "F", "I", "OVERLAP_F_B", "W"}));
  EXPECT_FALSE(is_compute(ActionKind::kIdle));
}

}  // namespace
}  // namespace pipewright::ir
