// The walks along the rows against the walk along the channel graph, which simulate_test and the
// independent models judge: equal to the last bit.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include "pipewright/schedule/lowering/lower.h"
#include "pipewright/schedule/simulate/simulate.h"
#include "pipewright/schedule/simulate/walks.h"
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

Costs random_costs(const ir::Schedule& schedule, Draw* draw) {
  Costs costs;
  for (PerStage* one : {&costs.forward, &costs.backward_input, &costs.backward_weight,
                        &costs.unshard, &costs.reshard, &costs.reduce_grad}) {
    std::vector<double> values;
    for (int stage = 0; stage < schedule.placement.num_stages(); ++stage)
      values.push_back(draw->cost());
    *one = PerStage(values);
  }
  costs.link.latency = draw->cost();
  for (int microbatch = 0; microbatch < schedule.num_microbatches; ++microbatch)
    costs.microbatch_scale.push_back(1 + draw->below(3));
  std::vector<int> recompute;
  for (int stage = 0; stage < schedule.placement.num_stages(); ++stage)
    if (draw->below(4) == 0) recompute.push_back(stage);
  return recomputing(std::move(costs), recompute, schedule.placement.num_stages());
}

// None, or one factor per action.
std::vector<double> random_stretch(const ir::Schedule& schedule, Draw* draw) {
  std::vector<double> stretch;
  if (draw->below(2) == 0) return stretch;
  for (const ir::Row& row : schedule.rows) {
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
  const std::vector<double> stretch = random_stretch(program, draw);
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

TEST(SimulateOnEdges, IdleSlots) {
  Draw draw;
  int compared = 0;
  for (int round = 0; round < 300; ++round) {
    ir::Program program = channel_model::random_program(draw.random());
    for (ir::Row& row : program.rows)
      row.insert(row.begin() + draw.below(static_cast<int>(row.size()) + 1), ir::Action());
    compare(program, 0, &draw, &compared);
  }
  EXPECT_GT(compared, 50);
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

// A schedule of the catalogue with up to 64 microbatches, after up to two changes: an action swaps
// places with the next one, disappears, or becomes idle.
ir::ComputeOrder random_order(Draw* draw) {
  const auto all = schedules::all_schedules();
  for (;;) {
    const schedules::ScheduleSpec& spec =
        *all[static_cast<size_t>(draw->below(static_cast<int>(all.size())))];
    const int ranks = 1 + draw->below(5);
    const schedules::Shape shape = {ranks, schedules::default_stages(spec, ranks),
                                    1 + draw->below(64)};
    if (schedules::shape_error(spec, shape)) continue;
    ir::ComputeOrder order = schedules::make_order(spec, shape);
    for (int changes = draw->below(3); changes > 0; --changes) {
      ir::Row& row = order.rows[static_cast<size_t>(draw->below(ranks))];
      if (row.size() < 2) continue;
      const int step = draw->below(static_cast<int>(row.size()) - 1);
      const auto at = row.begin() + step;
      switch (draw->below(4)) {
        case 0:
          row.erase(at);
          break;
        case 1:
          *at = ir::Action();
          break;
        default:
          std::swap(at[0], at[1]);
      }
    }
    return order;
  }
}

TEST(SimulateOrder, EqualsTheGraph) {
  Draw draw;
  int ran = 0, blocked = 0, compounds = 0;
  for (int round = 0; round < 1500; ++round) {
    const ir::ComputeOrder order = random_order(&draw);
    const Costs costs = random_costs(order, &draw);
    const std::vector<double> stretch = random_stretch(order, &draw);
    const ChannelGraph graph = ChannelGraph::of_order(order);
    const ir::Timeline expected = simulate(graph, order, costs, stretch);
    const auto found = simulate_order(order, CostTable(costs, order.placement), stretch);
    ASSERT_EQ(found.has_value(), graph.blocked().empty()) << order.name;
    if (found) expect_equal(*found, expected, order.name.c_str());
    expect_equal(simulate(order, costs, stretch), expected, order.name.c_str());
    (found ? ran : blocked) += 1;
    compounds += found && order.name == "DualPipeV";
  }
  EXPECT_GT(ran, 700);
  EXPECT_GT(blocked, 100);
  EXPECT_GT(compounds, 10);
}

TEST(SimulateOrder, RowsWithoutActions) {
  ir::ComputeOrder order;
  order.placement = ir::Placement::loop(2, 2);
  order.num_microbatches = 1;
  order.rows.resize(2);
  const auto timeline = simulate_order(order, CostTable(Costs(), order.placement));
  ASSERT_TRUE(timeline);
  EXPECT_EQ(timeline->size(), 0u);
}

// The second rank's first forward needs the first rank's last one: all microbatches are in flight.
TEST(SimulateOrder, ManyMicrobatchesInFlight) {
  ir::ComputeOrder order = schedules::make_order(*schedules::find_schedule("GPipe"), {3, 3, 1000});
  std::ranges::reverse(std::span(order.rows[1]).first(1000));
  Costs costs;
  costs.link.latency = 0.25;
  const auto found = simulate_order(order, CostTable(costs, order.placement));
  ASSERT_TRUE(found);
  expect_equal(*found, simulate(ChannelGraph::of_order(order), order, costs), "GPipe");
}

}  // namespace
}  // namespace pipewright::schedule
