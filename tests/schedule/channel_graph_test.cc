#include "pipewright/schedule/graph/channel_graph.h"

#include <gtest/gtest.h>

#include <vector>

namespace pipewright::schedule {
namespace {

TEST(ChannelGraphTest, AnOrderThatCannotRunIsBlocked) {
  ir::ComputeOrder order;
  order.placement = ir::Placement::loop(2, 2);
  order.num_microbatches = 1;
  order.rows = {
      {ir::Action(ir::ActionKind::kBackward, 0, 0), ir::Action(ir::ActionKind::kForward, 0, 0)},
      {ir::Action(ir::ActionKind::kForward, 1, 0), ir::Action(ir::ActionKind::kBackward, 1, 0)}};
  EXPECT_EQ(ChannelGraph::of_order(order).blocked(), (std::vector<uint32_t>{0, 1, 2, 3}));
}

}  // namespace
}  // namespace pipewright::schedule
