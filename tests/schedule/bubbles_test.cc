// The formulas of the catalogue for the bubble, against simulation: for every shape and cost where
// a formula claims to hold, it is the cost minus the busy time; and it claims no less than it
// could, because elsewhere it fails somewhere. The formulas are written out here.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <set>
#include <string_view>
#include <vector>

#include "pipewright/schedule/graph/channel_graph.h"
#include "pipewright/schedule/simulate/report.h"
#include "pipewright/schedule/simulate/simulate.h"
#include "pipewright/schedules/registry.h"

namespace pipewright::schedule {
namespace {

using schedules::ScheduleSpec;
using schedules::Shape;

// A shape and the times of one stage.
struct Case {
  int P, V, M;
  double F, I, W;
};

struct Formula {
  std::string_view name, bubble, where;
  double (*value)(const Case&);
  bool (*holds)(const Case&);
  bool is_fitted = false;
};

bool always(const Case&) { return true; }
bool enough_to_fill(const Case& c) { return c.M >= c.P || c.V == 1; }
bool small_w(const Case& c) { return c.W <= c.F && c.W <= c.I; }
bool unit(const Case& c) { return c.F == c.I && c.I == c.W; }
double whole(const Case& c) { return (c.P - 1) * (c.F + c.I + c.W); }
double zero_bubble(const Case& c) { return (c.P - 1) * (c.F + c.I - c.W); }

constexpr Formula kFormulas[] = {
    {"GPipe", "(P-1)(F+B)/K", "", whole, always},
    {"1F1B", "(P-1)(F+B)", "", whole, always},
    {"Eager1F1B", "(P-1)(F+B)", "", whole, always},
    // Here of whole microbatches; slices_test has others.
    {"Seq1F1B", "(P-1)(F+B)/K", "", whole, always},
    {"LoopedBFS", "(P-1)(F+B)", "M >= P or V = 1", whole, enough_to_fill},
    {"Interleaved1F1B", "(P-1)(F+B)", "M >= P or V = 1", whole, enough_to_fill},
    {"Seq1F1B-I", "(P-1)(F+B)/K", "M K >= P or V = 1", whole, enough_to_fill},
    {"InterleavedZeroBubble", "(P-1)(F+I-W)", "M >= P, W <= F and W <= I", zero_bubble,
     [](const Case& c) { return c.M >= c.P && small_w(c); }},
    {"ZB-H1", "(P-1)(F+I-W)", "M >= P, W <= F and W <= I", zero_bubble,
     [](const Case& c) { return c.M >= c.P && small_w(c); }},
    {"ZB-H2", "(P-1)(F+I-2W)", "M >= 2P-1, W <= F and W <= I",
     [](const Case& c) { return (c.P - 1) * (c.F + c.I - 2 * c.W); },
     [](const Case& c) { return c.M >= 2 * c.P - 1 && small_w(c); }},
    {"ZBVZeroBubble", "2 max(0, 2P-1-M) F", "F = I = W",
     [](const Case& c) { return 2 * std::max(0, 2 * c.P - 1 - c.M) * c.F; }, unit},
    // The simulator adds the times of a compound's parts.
    {"DualPipeV", "(P-1)(F&B + B - 3W)", "F&B = F+B, F = I and W <= F",
     [](const Case& c) {
       const double B = c.I + c.W;
       return (c.P - 1) * (c.F + B + B - 3 * c.W);
     },
     [](const Case& c) { return c.F == c.I && c.W <= c.F; }},
    {"DualPipe", "(P/2-1)(F&B + B - 3W)", "F&B = F+B, F = I and W <= F",
     [](const Case& c) {
       const double B = c.I + c.W;
       return (c.P / 2 - 1) * (c.F + B + B - 3 * c.W);
     },
     [](const Case& c) { return c.F == c.I && c.W <= c.F; }},
    {"Chimera", "(P/2-1)(F+B)", "F = B and P divides M",
     [](const Case& c) { return (c.P / 2 - 1) * (c.F + c.I + c.W); },
     [](const Case& c) { return c.F == c.I + c.W && c.M % c.P == 0; }},
    {"V-Half", "(3P-4) F for odd P, (3P-7) F for even P", "F = I = W, P >= 3 and M >= P",
     [](const Case& c) { return (c.P % 2 == 1 ? 3 * c.P - 4 : 3 * c.P - 7) * c.F; },
     [](const Case& c) { return unit(c) && c.P >= 3 && c.M >= c.P; }, true},
    {"V-Min", "(4P-5) F", "F = I = W, P >= 4 and M >= P",
     [](const Case& c) { return (4 * c.P - 5) * c.F; },
     [](const Case& c) { return unit(c) && c.P >= 4 && c.M >= c.P; }, true},
    {"1F1B-V", "(5P-5) F - 2((P-1) mod 3) F", "F = I = W, P >= 7 and M > P",
     [](const Case& c) { return (5 * c.P - 5) * c.F - 2 * ((c.P - 1) % 3) * c.F; },
     [](const Case& c) { return unit(c) && c.P >= 7 && c.M > c.P; }, true},
};

// The longest span of a rank minus its busy time.
double simulated_bubble(const ScheduleSpec& spec, const Shape& shape, const Case& c) {
  const ir::ComputeOrder order = make_order(spec, shape);
  const ChannelGraph graph = ChannelGraph::of_order(order);
  const Costs costs{.forward = c.F, .backward_input = c.I, .backward_weight = c.W};
  const Report report = report_on(order, costs, simulate(graph, order, costs));
  return report.cost - report.ranks.front().busy;
}

// Times of F, I and W: equal ones, and each order of different ones. Sums are exact.
constexpr double kTimes[][3] = {{1, 1, 1}, {4, 4, 3}, {3, 3, 0},   {4, 4, 5}, {3, 4, 2},
                                {4, 3, 1}, {2, 3, 5}, {3, 2, 2.5}, {1, 2, 2}, {5, 7, 6}};

// bubbles_box_test is this file with the full range of shapes.
#ifdef PIPEWRIGHT_WHOLE_BOX
constexpr int kMostRanks = 16, kMostStagesPerRank = 4, kMostMicrobatches = 64;
#else
constexpr int kMostRanks = 8, kMostStagesPerRank = 3, kMostMicrobatches = 20;
#endif

TEST(BubblesTest, EveryFormulaHoldsWhereItClaimsTo) {
  std::set<std::string_view> names;
  for (const Formula& formula : kFormulas) {
    SCOPED_TRACE(formula.name);
    const ScheduleSpec& spec = *schedules::find_schedule(formula.name);
    EXPECT_EQ(spec.bubble, formula.bubble);
    EXPECT_EQ(spec.bubble_where, formula.where);
    // Only these have no source but our simulator.
    EXPECT_EQ(spec.bubble_note.empty(), !formula.is_fitted);
    names.insert(spec.name);
    int inside = 0, broken_outside = 0;
    for (int ranks = 1; ranks <= kMostRanks; ++ranks) {
      for (int per_rank = 1; per_rank <= kMostStagesPerRank; ++per_rank) {
        for (int microbatches = 1; microbatches <= kMostMicrobatches; ++microbatches) {
          const Shape shape{ranks, ranks * per_rank, microbatches};
          if (shape_error(spec, shape)) continue;
          for (const auto& [forward, input, weight] : kTimes) {
            const Case c{ranks, per_rank, microbatches, forward, input, weight};
            const double simulated = simulated_bubble(spec, shape, c);
            if (formula.holds(c)) {
              ++inside;
              ASSERT_EQ(simulated, formula.value(c))
                  << "P=" << c.P << " V=" << c.V << " M=" << c.M << " F=" << c.F << " I=" << c.I
                  << " W=" << c.W;
            } else {
              broken_outside += simulated != formula.value(c);
            }
          }
        }
      }
    }
    EXPECT_GT(inside, 10);
    EXPECT_EQ(broken_outside > 0, !formula.where.empty());
  }
  for (const ScheduleSpec* spec : schedules::all_schedules()) {
    const bool is_planned = spec->plan_rows != nullptr;
    EXPECT_NE(names.contains(spec->name), is_planned) << spec->name;
  }
}

// Its options change when microbatches run, not how long a rank waits.
TEST(BubblesTest, InterleavedWithGroupsAndExtraWarmup) {
  const ScheduleSpec& spec = *schedules::find_schedule("Interleaved1F1B");
  int shapes = 0;
  for (const int ranks : {2, 3, 4, 8}) {
    for (const int microbatches : {4, 8, 11, 16, 24}) {
      for (const int group : {0, 4, 5, 8, 16, 1 << 30}) {
        for (const bool extra : {false, true}) {
          const Shape shape{ranks, 2 * ranks, microbatches, group, extra};
          const Case c{ranks, 2, microbatches, 3, 4, 2};
          if (shape_error(spec, shape) || !enough_to_fill(c)) continue;
          EXPECT_EQ(simulated_bubble(spec, shape, c), whole(c))
              << "P=" << ranks << " M=" << microbatches << " g=" << group << extra;
          ++shapes;
        }
      }
    }
  }
  EXPECT_GT(shapes, 50);
}

}  // namespace
}  // namespace pipewright::schedule
