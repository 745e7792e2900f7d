// Schedules whose microbatches are cut into slices: Seq1F1B against the formulas of its paper, and
// random orders against a reference that knows only the rules of ir/dependencies.h.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <sstream>
#include <string>
#include <tuple>

#include "pipewright/ir/text/action_text.h"
#include "pipewright/schedule/compile/compile.h"
#include "pipewright/schedule/problem/costs_json.h"
#include "pipewright/schedules/registry.h"
#include "tests/schedule/simulated.h"

namespace pipewright::schedule {
namespace {

using ir::Action;
using ir::ActionKind;
using ir::ActionPart;

// The idle time of each rank is (P-1)(F+B)/K, and rank r keeps min(M K, P-r+K-1) slices.
TEST(Seq1F1B, HasTheBubbleAndTheMemoryOfThePaper) {
  const Costs costs{.forward = 2, .backward_input = 3, .backward_weight = 1, .activation_bytes = 6};
  for (int ranks = 1; ranks <= 5; ++ranks) {
    for (int slices = 1; slices <= 4; ++slices) {
      for (int microbatches = 1; microbatches <= 6; ++microbatches) {
        const CompileResult result =
            compile({.source = "Seq1F1B",
                     .shape = {.ranks = ranks, .microbatches = microbatches, .slices = slices}});
        ASSERT_TRUE(result.ok());
        const auto simulated = simulate(result, {.costs = costs});
        ASSERT_TRUE(simulated.ok());
        const Report& report = simulated.simulation->report;
        const double time = 6.0;
        EXPECT_NEAR(report.makespan, time * (microbatches + (ranks - 1.0) / slices), 1e-9);
        for (int rank = 0; rank < ranks; ++rank) {
          const int kept = std::min(microbatches * slices, ranks - rank + slices - 1);
          EXPECT_NEAR(report.ranks[static_cast<size_t>(rank)].peak_bytes.amount,
                      kept * 6.0 / slices, 1e-9);
        }
      }
    }
  }
}

// Slice k takes slice_scale / K of what its microbatch takes, times microbatch_scale.
TEST(Slices, TakeTheirScale) {
  const Costs costs{.forward = 4,
                    .backward_input = 4,
                    .backward_weight = 4,
                    .microbatch_scale = {1, 2},
                    .slice_scale = {0.5, 1.5}};
  const CompileResult result =
      compile({.source = "Seq1F1B", .shape = {.ranks = 1, .microbatches = 2, .slices = 2}});
  const auto simulated = simulate(result, {.costs = costs});
  ASSERT_TRUE(simulated.ok());
  const ir::Program& program = result.program();
  std::map<std::string, double> times;
  for (size_t step = 0; step < program.rows[0].size(); ++step)
    times[ir::to_string(program.rows[0][step])] =
        simulated.simulation->timeline.at(0, step).duration();
  EXPECT_EQ(times["0F0"], 1);
  EXPECT_EQ(times["0F1"], 3);
  EXPECT_EQ(times["0F2"], 2);
  EXPECT_EQ(times["0F3"], 6);
  EXPECT_EQ(times["0B1"], 6);
  EXPECT_EQ(times["0B2"], 4);
  EXPECT_EQ(simulated.simulation->report.makespan, 36);
  // Written to a file and read again, they are equal.
  std::ostringstream text;
  print_costs(costs, text);
  ir::Diagnostics diagnostics;
  const auto again = parse_costs({"costs.json", text.str()}, &diagnostics);
  ASSERT_TRUE(again);
  EXPECT_EQ(again->costs, costs);
  // A list for another number of slices.
  const CompileResult three =
      compile({.source = "Seq1F1B", .shape = {.ranks = 1, .microbatches = 2, .slices = 3}});
  const auto refused = simulate(three, {.costs = costs});
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.diagnostics.kept()[0].message,
            "`slice_scale`: expected 3 numbers, one per slice, got 2");
  // Whole microbatches have none.
  const CompileResult whole = compile({.source = "1F1B", .shape = {.ranks = 1, .microbatches = 2}});
  EXPECT_EQ(simulate(whole, {.costs = costs}).simulation->report.makespan, 36);
}

// The same of the interleaved form, with V stages per rank of half the time.
TEST(Seq1F1BI, HasItsBubbleAndMemory) {
  const Costs costs{.forward = 2, .backward_input = 3, .backward_weight = 1, .activation_bytes = 6};
  int shapes = 0;
  for (int ranks = 1; ranks <= 5; ++ranks) {
    for (int V = 1; V <= 3; ++V) {
      for (int slices = 1; slices <= 4; ++slices) {
        for (int microbatches = 1; microbatches <= 12; ++microbatches) {
          const schedules::Shape shape{
              .ranks = ranks, .stages = V * ranks, .microbatches = microbatches, .slices = slices};
          if (schedules::shape_error(*schedules::find_schedule("Seq1F1B-I"), shape)) continue;
          const CompileResult result = compile({.source = "Seq1F1B-I", .shape = shape});
          ASSERT_TRUE(result.ok());
          const auto simulated = simulate(result, {.costs = costs, .with_bound = false});
          ASSERT_TRUE(simulated.ok());
          const Report& report = simulated.simulation->report;
          const int all = microbatches * slices;
          if (all >= ranks || V == 1) {
            EXPECT_NEAR(report.makespan, 6 * (V * microbatches + (ranks - 1.0) / slices), 1e-9);
          }
          const int round = all / std::max(1, all / ranks);
          for (int rank = 0; rank < ranks; ++rank) {
            const int kept = std::min(V * all, (V - 1) * round + 2 * (ranks - 1 - rank) + slices);
            EXPECT_NEAR(report.ranks[static_cast<size_t>(rank)].peak_bytes.amount,
                        kept * 6.0 / slices, 1e-9);
          }
          ++shapes;
        }
      }
    }
  }
  EXPECT_GT(shapes, 200);
}

// Runs each rank's row as far as the rules allow, again and again; true if all actions run.
bool runs(const ir::ComputeOrder& order) {
  std::set<std::tuple<char, int, int>> done;
  const int stages = order.placement.num_stages(), slices = order.slices;
  const auto is_done = [&](char kind, int stage, int u) { return done.contains({kind, stage, u}); };
  const auto may_run = [&](ActionPart part) {
    const int s = part.stage(), u = part.microbatch();
    const bool is_first = u % slices == 0, is_last = u % slices == slices - 1;
    if (part.kind() == ActionKind::kForward)
      return (s == 0 || is_done('F', s - 1, u)) && (is_first || is_done('F', s, u - 1));
    if (part.kind() == ActionKind::kBackwardWeight) return is_done('I', s, u);
    return is_done('F', s, u) && (s + 1 == stages || is_done('I', s + 1, u)) &&
           (is_last || is_done('I', s, u + 1));
  };
  std::vector<size_t> next(order.rows.size());
  for (bool goes_on = true; goes_on;) {
    goes_on = false;
    for (size_t rank = 0; rank < order.rows.size(); ++rank) {
      while (next[rank] < order.rows[rank].size() &&
             may_run(order.rows[rank][next[rank]].parts()[0])) {
        const ActionPart part = order.rows[rank][next[rank]++].parts()[0];
        const char kind = part.kind() == ActionKind::kForward          ? 'F'
                          : part.kind() == ActionKind::kBackwardWeight ? 'W'
                                                                       : 'I';
        done.insert({kind, part.stage(), part.microbatch()});
        goes_on = true;
      }
    }
  }
  for (size_t rank = 0; rank < order.rows.size(); ++rank)
    if (next[rank] < order.rows[rank].size()) return false;
  return true;
}

TEST(Slices, AnErrorNamesTheSlicesThatAreInTheWrongOrder) {
  const auto error_of = [](ir::Row row) {
    ir::ComputeOrder order =
        schedules::make_order(*schedules::find_schedule("GPipe"),
                              {.ranks = 1, .stages = 1, .microbatches = 1, .slices = 2});
    order.rows = {std::move(row)};
    const CompileResult result = compiled(order);
    return result.ok() ? "" : result.diagnostics.kept()[0].message;
  };
  using K = ActionKind;
  const Action f0(K::kForward, 0, 0), f1(K::kForward, 0, 1);
  const Action b0(K::kBackward, 0, 0), b1(K::kBackward, 0, 1);
  EXPECT_EQ(error_of({f0, f1, b1, b0}), "");
  EXPECT_EQ(error_of({f1, f0, b1, b0}),
            "`0F1` on rank 0 comes before `0F0`, whose result it needs");
  EXPECT_EQ(error_of({f0, f1, b0, b1}),
            "`0B0` on rank 0 comes before `0B1`, whose result it needs");
}

TEST(Slices, RandomOrdersAreValidIfTheyRun) {
  std::mt19937 random(1);
  const auto below = [&](size_t limit) { return static_cast<size_t>(random() % limit); };
  int valid = 0, refused = 0;
  for (int round = 0; round < 1000; ++round) {
    const int ranks = 1 + static_cast<int>(below(3));
    ir::ComputeOrder order =
        schedules::make_order(*schedules::find_schedule(below(3) == 0 ? "GPipe" : "Seq1F1B"),
                              {.ranks = ranks,
                               .stages = ranks,
                               .microbatches = 1 + static_cast<int>(below(3)),
                               .slices = 1 + static_cast<int>(below(3))});
    move_actions(&random, &order);
    const bool expected = runs(order);
    const CompileResult result = compiled(order);
    EXPECT_EQ(result.ok(), expected) << round;
    (expected ? valid : refused) += 1;
  }
  EXPECT_GT(valid, 100);
  EXPECT_GT(refused, 100);
}

}  // namespace
}  // namespace pipewright::schedule
