// The walk along the rows against the walk along the channel graph, which simulate_test and the
// independent models judge: equal to the last bit.
#include "pipewright/schedule/simulate/simulate_on_edges.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "pipewright/schedule/lowering/lower.h"
#include "pipewright/schedule/simulate/simulate.h"
#include "pipewright/schedules/registry.h"
#include "tests/channel_model/programs.h"

namespace pipewright::schedule {
namespace {

class Draw {
 public:
  int below(int n) { return static_cast<int>(random_() % static_cast<unsigned>(n)); }
  double cost() { return below(4) == 0 ? 0 : below(1000) / 7.0; }
  std::mt19937& random() { return random_; }

 private:
  std::mt19937 random_{1};
};

Costs random_costs(const ir::Program& program, Draw* draw) {
  Costs costs;
  for (PerStage* one : {&costs.forward, &costs.backward_input, &costs.backward_weight,
                        &costs.unshard, &costs.reshard, &costs.reduce_grad}) {
    std::vector<double> values;
    for (int stage = 0; stage < program.placement.num_stages(); ++stage)
      values.push_back(draw->cost());
    *one = PerStage(values);
  }
  costs.link.latency = draw->cost();
  for (int microbatch = 0; microbatch < program.num_microbatches; ++microbatch)
    costs.microbatch_scale.push_back(1 + draw->below(3));
  return costs;
}

std::vector<double> random_stretch(const ir::Program& program, Draw* draw) {
  std::vector<double> stretch;
  for (const ir::Row& row : program.rows) {
    for (size_t step = 0; step < row.size(); ++step) stretch.push_back(1 + draw->below(100) / 99.0);
  }
  return stretch;
}

void expect_equal(const ir::Timeline& found, const ir::Timeline& expected, const char* what) {
  ASSERT_EQ(found.size(), expected.size());
  for (size_t cell = 0; cell < found.size(); ++cell)
    ASSERT_EQ(found[cell], expected[cell]) << what << ", cell " << cell;
}

void compare(const ir::Program& program, ir::ChannelCapacity capacity, Draw* draw, int* compared) {
  const Costs costs = random_costs(program, draw);
  const std::vector<double> stretch =
      draw->below(2) == 0 ? std::vector<double>() : random_stretch(program, draw);
  const auto graph = ChannelGraph::of_program(program, ir::ChannelModel::kEdge, capacity);
  const auto found =
      simulate_on_edges(program, capacity, CostTable(costs, program.placement), stretch);
  const bool runs = graph.blocked().empty() && graph.transfers_match();
  ASSERT_EQ(found.has_value(), runs) << program.name;
  if (!runs) return;
  expect_equal(*found, simulate(graph, program, costs, stretch), program.name.c_str());
  ++*compared;
}

TEST(SimulateOnEdges, EqualsTheGraphOnEverySchedule) {
  Draw draw;
  int compared = 0;
  for (const schedules::ScheduleSpec* spec : schedules::all_schedules()) {
    for (int round = 0; round < 12; ++round) {
      const int ranks = 2 + draw.below(4);
      const schedules::Shape shape = {ranks, schedules::default_stages(*spec, ranks), 2 * ranks};
      if (schedules::shape_error(*spec, shape)) continue;
      ir::Lowering policies;
      if (round % 2 == 0) policies.receives = ir::Receives::kLatest;
      ir::Diagnostics diagnostics;
      const auto program = lower(schedules::make_order(*spec, shape), policies, &diagnostics);
      ASSERT_TRUE(program) << spec->name;
      for (const ir::ChannelCapacity capacity : {0u, ir::kUnboundedCapacity})
        compare(*program, capacity, &draw, &compared);
    }
  }
  EXPECT_GT(compared, 300);
}

TEST(SimulateOnEdges, EqualsTheGraphOnRandomPrograms) {
  Draw draw;
  int compared = 0, all = 0;
  for (; all < 3000; ++all) {
    const ir::Program program = channel_model::random_program(draw.random());
    for (const ir::ChannelCapacity capacity : {0u, ir::kUnboundedCapacity})
      compare(program, capacity, &draw, &compared);
  }
  EXPECT_GT(compared, 1000);
  EXPECT_LT(compared, 2 * all - 100);  // some do not run
}

TEST(SimulateOnEdges, RowsWithoutActions) {
  const ir::Program program = channel_model::program_of(ir::Placement::loop(2, 2), 1, {"", ""});
  const auto timeline = simulate_on_edges(program, 0, CostTable(Costs(), program.placement));
  ASSERT_TRUE(timeline);
  EXPECT_EQ(timeline->size(), 0u);
}

TEST(SimulateOnEdges, LeavesAFiniteCapacityToTheGraph) {
  const ir::Program program =
      channel_model::program_of(ir::Placement::loop(2, 2), 1, {"0F0 0SEND_F0", "1RECV_F0 1F0"});
  const CostTable table(Costs(), program.placement);
  EXPECT_TRUE(simulate_on_edges(program, 0, table));
  EXPECT_FALSE(simulate_on_edges(program, 1, table));
}

// Through the front, in every model.
TEST(SimulateOnEdges, SimulateOfAProgramIsThatOfItsGraph) {
  Draw draw;
  for (int round = 0; round < 300; ++round) {
    const ir::Program program = channel_model::random_program(draw.random());
    const Costs costs = random_costs(program, &draw);
    for (const ir::ChannelModel model :
         {ir::ChannelModel::kRank, ir::ChannelModel::kPeer, ir::ChannelModel::kEdge}) {
      for (const ir::ChannelCapacity capacity : {0u, 1u, ir::kUnboundedCapacity}) {
        const auto graph = ChannelGraph::of_program(program, model, capacity);
        expect_equal(simulate(program, model, capacity, costs), simulate(graph, program, costs),
                     program.name.c_str());
      }
    }
  }
}

}  // namespace
}  // namespace pipewright::schedule
