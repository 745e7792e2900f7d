#include <gtest/gtest.h>

#include "pipewright/schedule/simulate/simulate.h"
#include "pipewright/schedules/registry.h"

namespace pipewright::schedule {
namespace {

TEST(JitterTest, SpreadsAroundTheMakespan) {
  const ir::ComputeOrder order =
      schedules::make_order(*schedules::find_schedule("1F1B"), {4, 4, 8});
  const auto graph = ChannelGraph::of_order(order);
  const Spread none = spread_of_makespan(graph, order, Costs(), 0, 5, 1);
  EXPECT_EQ(none.least, 33);
  EXPECT_EQ(none.most, 33);
  EXPECT_EQ(none.deviation, 0);
  const Spread some = spread_of_makespan(graph, order, Costs(), 0.2, 200, 7);
  EXPECT_LT(some.least, some.median);
  EXPECT_LT(some.median, some.percentile_95);
  EXPECT_LE(some.percentile_95, some.most);
  // Delays add up along the critical path, and early actions wait.
  EXPECT_GT(some.mean, 33);
  EXPECT_LT(some.mean, 33 * 1.2);
  const Spread again = spread_of_makespan(graph, order, Costs(), 0.2, 200, 7);
  EXPECT_EQ(some.mean, again.mean);
  EXPECT_NE(some.mean, spread_of_makespan(graph, order, Costs(), 0.2, 200, 8).mean);
}

}  // namespace
}  // namespace pipewright::schedule
