// The simulator against numbers that others published: papers' tables and closed forms.
#include "schedule/simulate.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <string>

#include "schedule/report.h"
#include "schedules/registry.h"

namespace pipewright::schedule {
namespace {

Report report_of(std::string_view name, const schedules::Shape& shape, const Costs& costs) {
  const ir::ComputeOrder order = schedules::make_order(*schedules::find_schedule(name), shape);
  const auto graph = EventGraph::of_order(order);
  EXPECT_TRUE(graph);
  return report_on(order, costs, simulate(*graph, order, costs));
}

// A stage's time shared by the stages of a rank.
Costs costs_of(double forward, double input, double weight, double comm, int per_rank = 1) {
  Costs costs;
  costs.forward = forward / per_rank;
  costs.backward_input = input / per_rank;
  costs.backward_weight = weight / per_rank;
  costs.link.latency = comm;
  return costs;
}

TEST(SimulateTest, GoldenValuesAtUnitCost) {
  struct Golden {
    const char* name;
    int per_rank;
    double longest_4_8, longest_8_16;
  };
  for (const Golden& golden : {Golden{"GPipe", 1, 33, 69},
                               {"1F1B", 1, 33, 69},
                               {"Interleaved1F1B", 2, 28.5, 58.5},
                               {"ZBVZeroBubble", 2, 24, 48},
                               {"DualPipeV", 2, 27, 55}}) {
    const Costs costs = costs_of(1, 1, 1, 0, golden.per_rank);
    EXPECT_EQ(report_of(golden.name, {4, 4 * golden.per_rank, 8}, costs).cost, golden.longest_4_8)
        << golden.name;
    EXPECT_EQ(report_of(golden.name, {8, 8 * golden.per_rank, 16}, costs).cost, golden.longest_8_16)
        << golden.name;
  }
}

TEST(SimulateTest, GoldenValuesOfInterleavedWithGroupsAndExtraWarmup) {
  const Costs costs = costs_of(1, 1, 1, 0, 2);
  for (const auto& [shape, wanted, first_peak, last_peak] :
       {std::tuple(schedules::Shape{4, 8, 8, 0, true}, 28.5, 12, 6),
        std::tuple(schedules::Shape{8, 16, 16, 0, true}, 58.5, 24, 10),
        std::tuple(schedules::Shape{4, 8, 8, 8, false}, 28.5, 15, 9),
        std::tuple(schedules::Shape{8, 16, 16, 16, false}, 58.5, 31, 17)}) {
    const Report report = report_of("Interleaved1F1B", shape, costs);
    EXPECT_EQ(report.cost, wanted);
    EXPECT_EQ(report.ranks.front().peak_activations, first_peak);
    EXPECT_EQ(report.ranks.back().peak_activations, last_peak);
  }
}

// arXiv 2401.10241, Tables 9 (costs in ms) and 5 (bubble rates), to four decimals.
TEST(SimulateTest, ZeroBubblePapersTable5) {
  struct Row {
    int ranks, microbatches, chunks;
    double forward, input, weight, comm;
    double rate_1f1b, rate_interleaved, rate_zb_h1, rate_zb_h2;
  };
  for (const Row& row : {
           Row{8, 24, 3, 18.522, 18.086, 9.337, 0.601, .2431, .1090, .1585, .1083},
           Row{8, 32, 3, 18.513, 18.086, 9.331, 0.626, .1985, .0847, .1242, .0837},
           Row{8, 64, 3, 18.546, 18.097, 9.321, 0.762, .1240, .0461, .0674, .0444},
           Row{16, 48, 3, 11.347, 11.248, 8.132, 0.377, .2552, .1136, .1397, .0672},
           Row{16, 64, 3, 11.307, 11.254, 8.101, 0.379, .2082, .0878, .1088, .0516},
           Row{16, 128, 3, 11.325, 11.308, 8.109, 0.378, .1251, .0459, .0576, .0266},
       }) {
    const Costs costs = costs_of(row.forward, row.input, row.weight, row.comm);
    EXPECT_NEAR(report_of("1F1B", {row.ranks, row.ranks, row.microbatches}, costs).bubble_rate,
                row.rate_1f1b, 5e-5);
    EXPECT_NEAR(report_of("ZB-H1", {row.ranks, row.ranks, row.microbatches}, costs).bubble_rate,
                row.rate_zb_h1, 5e-5);
    EXPECT_NEAR(report_of("ZB-H2", {row.ranks, row.ranks, row.microbatches}, costs).bubble_rate,
                row.rate_zb_h2, 5e-5);
    const Costs shared = costs_of(row.forward, row.input, row.weight, row.comm, row.chunks);
    EXPECT_NEAR(
        report_of("Interleaved1F1B", {row.ranks, row.chunks * row.ranks, row.microbatches}, shared)
            .bubble_rate,
        row.rate_interleaved, 5e-5);
  }
}

}  // namespace
}  // namespace pipewright::schedule
