// The passes on small examples: PyTorch's own tests, by name, and cases that they do not cover.
#include <gtest/gtest.h>

#include <sstream>

#include "pipewright/ir/text/action_text.h"
#include "pipewright/ir/text/csv.h"
#include "pipewright/schedule/lowering/add_send_recv.h"
#include "pipewright/schedule/lowering/add_unshard_reshard.h"
#include "pipewright/schedule/lowering/limit_sends.h"
#include "pipewright/schedule/lowering/lower.h"
#include "pipewright/schedule/lowering/place_receives.h"

namespace pipewright::schedule {
namespace {

// "0F0,0F1,,0B0" as a row.
ir::Row row(const std::string& text) {
  ir::Row cells;
  std::stringstream stream(text);
  for (std::string cell; std::getline(stream, cell, ',');) {
    ir::Action action;
    EXPECT_FALSE(ir::parse_action(cell, &action)) << cell;
    cells.push_back(action);
  }
  return cells;
}

std::string text(const ir::Row& cells) {
  std::string joined;
  for (const ir::Action& action : cells) {
    if (!joined.empty()) joined += ',';
    ir::append_action(action, &joined);
  }
  return joined;
}

ir::Schedule schedule(const ir::Placement& placement, int microbatches,
                      const std::vector<std::string>& rows) {
  ir::Schedule made;
  made.placement = placement;
  made.num_microbatches = microbatches;
  for (const std::string& one : rows) made.rows.push_back(row(one));
  return made;
}

// One rank with all stages.
ir::ComputeOrder order(int stages, int microbatches, const std::string& cells) {
  return {schedule(ir::Placement::loop(1, stages), microbatches, {cells})};
}

// ---- PyTorch's tests, by name, with their inputs and outputs

TEST(PassesTest, TestUnshardReshard) {
  const auto pass = [](int stages, const std::string& before) {
    return text(add_unshard_reshard(order(stages, 2, before), {}).rows[0]);
  };
  EXPECT_EQ(pass(1, "0F0,0F1,   ,0B0,0B1"), "0UNSHARD,0F0,0F1,0B0,0B1,0RESHARD");
  EXPECT_EQ(pass(2, "0F0,0F1,1F0,1F1,1B0,1B1,0B0,0B1"),
            "0UNSHARD,1UNSHARD,0F0,0F1,1F0,1F1,1B0,1B1,1RESHARD,0B0,0B1,0RESHARD");
}

TEST(PassesTest, TestReduceGrad) {
  const auto pass = [](int stages, const std::string& before) {
    return text(
        add_reduce_grad({schedule(ir::Placement::loop(1, stages), 2, {before})}, std::nullopt)
            .rows[0]);
  };
  EXPECT_EQ(pass(1, "0F0,0F1,0B0,0B1"), "0F0,0F1,0B0,0B1,0REDUCE_GRAD");
  EXPECT_EQ(pass(2, "0F0,0F1,1F0,1F1,1B0,1B1,0B0,0B1"),
            "0F0,0F1,1F0,1F1,1B0,1B1,1REDUCE_GRAD,0B0,0B1,0REDUCE_GRAD");
}

TEST(PassesTest, TestMergeBw) {
  EXPECT_EQ(text(merge_backward(order(1, 3, "0F0,0F1,0F2,0I0,0I1,0W0,0I2,0W2,0W1")).rows[0]),
            "0F0,0F1,0F2,0I0,0I1,0W0,0B2,0W1");
}

std::vector<std::string> send_recv(const ir::Placement& placement, int microbatches,
                                   const std::vector<std::string>& rows) {
  const auto lowered = add_send_recv({schedule(placement, microbatches, rows)});
  EXPECT_TRUE(lowered);
  std::vector<std::string> texts;
  for (const ir::Row& one : lowered->rows) texts.push_back(text(one));
  return texts;
}

TEST(PassesTest, TestSendRecvSimple2Rank2Stage) {
  EXPECT_EQ(send_recv(ir::Placement::loop(2, 2), 2, {"0F0,0F1,,0B0,,0B1", ",1F0,1B0,1F1,1B1"}),
            (std::vector<std::string>{"0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1",
                                      "1RECV_F0,1RECV_F1,1F0,1B0,1SEND_B0,1F1,1B1,1SEND_B1"}));
}

TEST(PassesTest, TestSendRecvV2Rank4Stage) {
  EXPECT_EQ(send_recv(ir::Placement::v(2, 4), 2,
                      {"0F0,0F1,,3F0,3B0,3F1,3B1,0B0,3W0,0B1,3W1,0W0,0W1",
                       ",1F0,2F0,1F1,2F1,2B0,1B0,2B1,1B1,2W0,2W1,1W0,1W1"}),
            (std::vector<std::string>{"0F0,0SEND_F0,0F1,0SEND_F1,3RECV_F0,3F0,3B0,3SEND_B0,3RECV_"
                                      "F1,3F1,3B1,3SEND_B1,0RECV_B0,0B0,"
                                      "3W0,0RECV_B1,0B1,3W1,0W0,0W1",
                                      "1RECV_F0,1RECV_F1,1F0,2F0,2SEND_F0,1F1,2RECV_B0,2F1,2SEND_"
                                      "F1,2B0,2RECV_B1,1B0,1SEND_B0,2B1,"
                                      "1B1,1SEND_B1,2W0,2W1,1W0,1W1"}));
}

// ---- cases without a test in PyTorch

TEST(PassesTest, MergeLeavesPartsThatAreNotAdjacentOrDoNotMatch) {
  EXPECT_EQ(text(merge_backward(order(2, 2, "0I0,1W0,0I1,0W0,(0F1;1I0)OVERLAP_F_B,1W0")).rows[0]),
            "0I0,1W0,0I1,0W0,(0F1;1I0)OVERLAP_F_B,1W0");
  EXPECT_EQ(text(merge_backward(order(1, 2, "0I0,,0W0")).rows[0]),
            "0B0");  // idle slots do not separate them
}

TEST(PassesTest, SplitIsUndoneByMerge) {
  const std::string whole = "0F0,0F1,0B0,0B1";
  const ir::ComputeOrder split = split_backward(order(1, 2, whole));
  EXPECT_EQ(text(split.rows[0]), "0F0,0F1,0I0,0W0,0I1,0W1");
  EXPECT_EQ(text(merge_backward(split).rows[0]), whole);
  EXPECT_EQ(text(split_backward(order(2, 3, "(0F2;1B1)OVERLAP_F_B,(1B0;0F1)OVERLAP_F_B")).rows[0]),
            "(0F2;1I1)OVERLAP_F_B,1W1,(1I0;0F1)OVERLAP_F_B,1W0");
}

TEST(PassesTest, ForwardOnlyKeepsForwardsOfCompounds) {
  EXPECT_EQ(text(forward_only(order(2, 3, "0F0,,0B0,(0F2;1B1)OVERLAP_F_B,(1I0;0F1)OVERLAP_F_B,1W0"))
                     .rows[0]),
            "0F0,0F2,0F1");
}

TEST(PassesTest, ReduceEveryFewMicrobatches) {
  const auto pass = [](int every) {
    return text(
        add_reduce_grad({schedule(ir::Placement::loop(1, 1), 5, {"0B0,0B1,0B2,0B3,0B4"})}, every)
            .rows[0]);
  };
  EXPECT_EQ(pass(2), "0B0,0B1,0REDUCE_GRAD,0B2,0B3,0REDUCE_GRAD,0B4,0REDUCE_GRAD");
  EXPECT_EQ(pass(5), "0B0,0B1,0B2,0B3,0B4,0REDUCE_GRAD");
  EXPECT_EQ(pass(7), "0B0,0B1,0B2,0B3,0B4,0REDUCE_GRAD");
}

TEST(PassesTest, ResidencyAndLookaheadAreIndependent) {
  const std::string before = "0F0,1F0,2F0,0F1";
  const auto pass = [&](const ResidencyPolicy& policy) {
    return text(add_unshard_reshard(order(3, 2, before), policy).rows[0]);
  };
  EXPECT_EQ(pass({.residency = 3, .lookahead = 1}),
            "0UNSHARD,0F0,1UNSHARD,1F0,1RESHARD,2UNSHARD,2F0,2RESHARD,0F1,0RESHARD");
  EXPECT_EQ(
      pass({.residency = 1, .lookahead = 1}),
      "0UNSHARD,0F0,0RESHARD,1UNSHARD,1F0,1RESHARD,2UNSHARD,2F0,2RESHARD,0UNSHARD,0F1,0RESHARD");
}

TEST(PassesTest, FarthestKeepsTheStageNeededSoonest) {
  // Residency 2: stage 1 is resharded to make room for stage 2, because stage 0 is needed sooner.
  EXPECT_EQ(
      text(add_unshard_reshard(order(3, 3, "0F0,1F0,2F0,0F1,1F1"),
                               {.residency = 2, .lookahead = 1, .evict = ir::Eviction::kFarthest})
               .rows[0]),
      "0UNSHARD,0F0,1UNSHARD,1F0,1RESHARD,2UNSHARD,2F0,2RESHARD,0F1,0RESHARD,1UNSHARD,1F1,"
      "1RESHARD");
}

TEST(PassesTest, AnOrderThatCannotRunHasNoSendsAndReceives) {
  EXPECT_FALSE(add_send_recv({schedule(ir::Placement::loop(2, 2), 1, {",0B0,0F0", "1F0,1B0"})}));
}

// ---- SENDs and RECVs of PyTorch 2.15

std::vector<std::string> texts(const ir::Program& program) {
  std::vector<std::string> rows;
  for (const ir::Row& cells : program.rows) rows.push_back(text(cells));
  return rows;
}

ir::Program two_ranks(const std::string& row0, const std::string& row1) {
  return {schedule(ir::Placement::loop(2, 2), 2, {row0, row1})};
}

// The rank with the lower number posts its RECVs from the other one before a SEND to it.
TEST(PassesTest, ParityReceives) {
  EXPECT_EQ(
      texts(parity_receives(two_ranks("0F0,0SEND_F0,0RECV_B0,0F1,0SEND_F1,0B0,0RECV_B1,0B1",
                                      "1RECV_F0,1RECV_F1,1F0,1B0,1SEND_B0,1F1,1B1,1SEND_B1"))),
      (std::vector<std::string>{"0F0,0SEND_F0,0F1,0RECV_B0,0SEND_F1,0B0,0RECV_B1,0B1",
                                "1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1"}));
}

TEST(PassesTest, LimitSends) {
  const ir::Program program =
      add_wait_send(two_ranks("0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1",
                              "1RECV_F0,1RECV_F1,1F0,1B0,1SEND_B0,1F1,1B1,1SEND_B1"));
  EXPECT_EQ(texts(limit_sends(program, 2).value()), texts(program));
  EXPECT_EQ(
      texts(limit_sends(program, 1).value()),
      (std::vector<std::string>{
          "0F0,0SEND_F0,0F1,0WAIT_SEND_F0,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1,0WAIT_SEND_F1",
          "1RECV_F0,1RECV_F1,1F0,1B0,1SEND_B0,1F1,1B1,1WAIT_SEND_B0,1SEND_B1,1WAIT_SEND_B1"}));
  EXPECT_EQ(least_pending_sends(program), 1);
  // The RECV of the first SEND comes after a RECV that waits for the second one.
  const ir::Program crossed =
      add_wait_send(two_ranks("0F0,0SEND_F0,0F1,0SEND_F1", "1RECV_F1,1F1,1RECV_F0,1F0"));
  EXPECT_FALSE(limit_sends(crossed, 1));
  EXPECT_EQ(least_pending_sends(crossed), 2);
}

}  // namespace
}  // namespace pipewright::schedule
