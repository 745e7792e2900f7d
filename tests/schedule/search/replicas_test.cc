// Searches with two replicas of the model: the best of all orders of small problems, by trying each
// in the simulator, and never worse than the catalogue's schedules of two replicas.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <limits>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "pipewright/schedule/graph/channel_graph.h"
#include "pipewright/schedule/search/front.h"
#include "pipewright/schedule/search/search.h"
#include "pipewright/schedule/search/words.h"
#include "pipewright/schedule/simulate/report.h"
#include "pipewright/schedule/simulate/simulate.h"
#include "pipewright/schedule/verify/verify.h"
#include "pipewright/schedules/registry.h"

namespace pipewright::schedule::search {
namespace {

using ir::ActionKind;

// Two ranks with both stages of a model each: stage r and, of the other replica, stage 1-r.
struct Tiny {
  int microbatches = 2;
  bool splits = true;
  double memory = 0;  // activations of one stage at a time; 0: no limit
  Costs costs = {};

  ir::Placement placement() const { return both_ways(ir::Placement::loop(2, 2), microbatches, 1); }
};

// All rows of a rank: each replica's microbatches in order, the two replicas in any.
class Rows {
 public:
  Rows(const Tiny& tiny, int rank) : tiny_(tiny), rank_(rank) { extend(); }
  const std::vector<ir::Row>& all() const { return all_; }

 private:
  void extend() {
    const int each = tiny_.microbatches / 2, passes = tiny_.splits ? 3 : 2;
    if (row_.size() == static_cast<size_t>(2 * passes * each)) all_.push_back(row_);
    for (int replica = 0; replica < 2; ++replica) {
      const int stage = replica == 0 ? rank_ : 1 - rank_;
      std::array<int, 3>& done = done_[static_cast<size_t>(replica)];
      for (int pass = 0; pass < passes; ++pass) {
        int& own = done[static_cast<size_t>(pass)];
        const int before = pass == 0 ? each : done[static_cast<size_t>(pass) - 1];
        if (own == before) continue;
        if (pass == 0 && tiny_.memory > 0 && alive() + 1 > tiny_.memory) continue;
        const ActionKind kind = pass == 0      ? ActionKind::kForward
                                : pass == 2    ? ActionKind::kBackwardWeight
                                : tiny_.splits ? ActionKind::kBackwardInput
                                               : ActionKind::kBackward;
        row_.emplace_back(kind, stage, replica * each + own);
        ++own;
        extend();
        --own;
        row_.pop_back();
      }
    }
  }
  // Without sizes, I frees one half of an activation and W the other.
  double alive() const {
    double sum = 0;
    for (const std::array<int, 3>& done : done_)
      sum += done[0] - (tiny_.splits ? (done[1] + done[2]) / 2.0 : done[1]);
    return sum;
  }

  const Tiny& tiny_;
  const int rank_;
  std::array<std::array<int, 3>, 2> done_ = {};  // by replica and pass
  ir::Row row_;
  std::vector<ir::Row> all_;
};

double cost_of(const ir::ComputeOrder& order, const Costs& costs) {
  return report_on(order, costs, simulate(order, costs)).cost;
}

double least_cost(const Tiny& tiny) {
  double least = std::numeric_limits<double>::infinity();
  ir::ComputeOrder order;
  order.placement = tiny.placement();
  order.num_microbatches = tiny.microbatches;
  order.rows.resize(2);
  const Rows first(tiny, 0), second(tiny, 1);
  for (const ir::Row& one : first.all()) {
    order.rows[0] = one;
    for (const ir::Row& other : second.all()) {
      order.rows[1] = other;
      const bool runs = ChannelGraph::of_order(order).blocked().empty();
      if (runs) least = std::min(least, cost_of(order, tiny.costs));
    }
  }
  return least;
}

TEST(SearchOfReplicas, FindsTheBestOfAllOrders) {
  std::mt19937 random(1);
  const auto number = [&](int least, int most) {
    return std::uniform_int_distribution(least, most)(random);
  };
  int optimal = 0;
  for (int run = 0; run < 24; ++run) {
    SCOPED_TRACE(run);
    Tiny tiny{.microbatches = run % 3 == 0 ? 4 : 2, .splits = run % 3 != 0};
    tiny.costs = {
        .forward = PerStage(std::vector<double>{1.0 * number(1, 9), 1.0 * number(1, 9)}),
        .backward_input = PerStage(std::vector<double>{1.0 * number(1, 9), 1.0 * number(1, 9)}),
        .backward_weight = PerStage(std::vector<double>{1.0 * number(1, 9), 1.0 * number(1, 9)}),
        .link = {.latency = 1.0 * number(0, 3)}};
    if (number(0, 1) == 0) tiny.memory = number(1, 2);
    SearchRequest request = {.placement = tiny.placement(),
                             .num_microbatches = tiny.microbatches,
                             .costs = tiny.costs,
                             .splits_backward = tiny.splits,
                             .evaluations = 300'000};
    // One activation of a rank is that of a microbatch on both of its stages.
    if (tiny.memory > 0) request.memory.activations = PerRank(tiny.memory / 2);
    const double least = least_cost(tiny);
    const SearchResult found = search_schedule(request);
    EXPECT_EQ(found.cost, least);
    EXPECT_LE(found.problem.time(found.bound.value), least);
    optimal += found.gap() == 0;
    ir::Diagnostics diagnostics;
    EXPECT_TRUE(verify(found.order, &diagnostics));
    EXPECT_EQ(cost_of(found.order, tiny.costs), found.cost);
  }
  EXPECT_GT(optimal, 0);
}

TEST(SearchOfReplicas, IsNeverWorseThanTheCatalogue) {
  int better = 0;
  for (const int ranks : {2, 4, 6}) {
    for (const int rounds : {2, 3}) {
      for (const double overlap : {0.0, 0.5}) {
        const int microbatches = rounds * ranks;
        const Costs costs = {.forward = 1,
                             .backward_input = 1.25,
                             .backward_weight = 0.75,
                             .overlap = overlap,
                             .link = {.latency = 0.125}};
        const SearchResult found = search_schedule(
            {.placement = both_ways(ir::Placement::loop(ranks, ranks), microbatches, 1),
             .num_microbatches = microbatches,
             .costs = costs,
             .evaluations = 1'000'000});
        EXPECT_NEAR(cost_of(found.order, costs), found.cost, 1e-9);
        for (const char* name : {"Chimera", "DualPipe"}) {
          const schedules::ScheduleSpec& spec = *schedules::find_schedule(name);
          const schedules::Shape shape{ranks, ranks, microbatches};
          ASSERT_FALSE(schedules::shape_error(spec, shape)) << name;
          const double cost = cost_of(schedules::make_order(spec, shape), costs);
          EXPECT_LE(found.cost, cost + 1e-9) << name << ", " << ranks << " ranks";
          better += found.cost < 0.99 * cost;
        }
      }
    }
  }
  EXPECT_GT(better, 12);  // of 24
}

// A factor of the microbatches of the second replica makes its stages slower, and only those.
TEST(SearchOfReplicas, MicrobatchesKeepTheirScale) {
  const ir::Placement placement = both_ways(ir::Placement::loop(2, 2), 4, 1);
  const Costs costs = {.microbatch_scale = {1, 1, 3, 2}};
  const SearchResult found = search_schedule(
      {.placement = placement, .num_microbatches = 4, .costs = costs, .evaluations = 300'000});
  EXPECT_NEAR(cost_of(found.order, costs), found.cost, 1e-9);
  EXPECT_LE(found.problem.time(found.bound.value), found.cost);
  // Each rank runs F, I and W of each microbatch once.
  EXPECT_GE(found.cost, 3 * (1 + 1 + 3 + 2));
}

TEST(SearchOfReplicas, SlicesStayWithTheirMicrobatch) {
  const SearchResult found =
      search_schedule({.placement = both_ways(ir::Placement::loop(2, 2), 4, 2),
                       .num_microbatches = 8,
                       .costs = sliced({}, 2, 8),
                       .evaluations = 300'000});
  EXPECT_EQ(found.order.placement.instances().second_from, 4);
  ir::ComputeOrder order = found.order;
  ir::Diagnostics diagnostics;
  EXPECT_TRUE(verify(order, &diagnostics));
}

TEST(SearchOfReplicas, RanksAndMicrobatchesAreEven) {
  const auto error = [](int ranks, int microbatches) -> std::string {
    try {
      both_ways(ir::Placement::loop(ranks, ranks), microbatches, 1);
    } catch (const std::invalid_argument& caught) {
      return caught.what();
    }
    return "";
  };
  EXPECT_EQ(error(4, 6), "");
  EXPECT_EQ(error(3, 6), "replicas 2: expected an even number of ranks, got 3");
  EXPECT_EQ(error(4, 5), "replicas 2: expected an even number of microbatches, got 5");
}

}  // namespace
}  // namespace pipewright::schedule::search
