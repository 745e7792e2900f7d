// What the executor plans before it runs a program.
#include "pipewright/executor/program/program.h"

#include <gtest/gtest.h>

#include <map>
#include <utility>
#include <vector>

#include "pipewright/schedule/compile/compile.h"
#include "pipewright/schedule/search/search.h"

namespace pipewright::executor {
namespace {

// Programs with compounds: those of the catalogue, and what a search finds.
std::vector<ir::Program> programs_with_compounds() {
  std::vector<ir::Program> programs;
  for (const char* name : {"DualPipeV", "DualPipe"}) {
    for (const int ranks : {2, 4, 6}) {
      const auto compiled =
          schedule::compile({.source = name, .shape = {.ranks = ranks, .microbatches = 4 * ranks}});
      EXPECT_TRUE(compiled.ok()) << name;
      programs.push_back(compiled.program());
    }
  }
  for (const bool splits : {true, false}) {
    const auto found = schedule::search::search_schedule({.placement = ir::Placement::v(3, 6),
                                                          .num_microbatches = 9,
                                                          .costs = {.overlap = 0.5},
                                                          .splits_backward = splits,
                                                          .evaluations = 100'000});
    programs.push_back(schedule::compile({.source = ir::AnySchedule(found.order)}).program());
  }
  return programs;
}

TEST(PlanStreams, PartsOfCompoundsDifferAndThoseOfAMicrobatchDoNot) {
  int compounds = 0, alone_on_side = 0;
  for (const ir::Program& program : programs_with_compounds()) {
    for (const ir::Row& row : program.rows) {
      RowPlan plan = plan_row(row);
      plan_streams(&plan);
      std::map<std::pair<int, int>, bool> on_side;  // by stage and microbatch
      for (const PlannedAction& planned : plan.actions) {
        const auto parts = planned.action.parts();
        for (size_t k = 0; k < parts.size(); ++k) {
          if (!ir::is_compute(parts[k].kind())) {
            EXPECT_FALSE(planned.on_side[k]);
            continue;
          }
          const auto [place, _] =
              on_side.try_emplace({parts[k].stage(), parts[k].microbatch()}, planned.on_side[k]);
          EXPECT_EQ(place->second, planned.on_side[k]);
        }
        compounds += planned.action.is_compound();
        if (planned.action.is_compound())
          EXPECT_NE(planned.on_side[0], planned.on_side[1]);
        else
          alone_on_side += planned.on_side[0];
      }
    }
  }
  EXPECT_GT(compounds, 100);
  EXPECT_GT(alone_on_side, 100);
}

TEST(PlanStreams, WithoutCompoundsThereIsOneStream) {
  const auto compiled =
      schedule::compile({.source = "ZBV", .shape = {.ranks = 4, .microbatches = 8}});
  ASSERT_TRUE(compiled.ok());
  for (const ir::Row& row : compiled.program().rows) {
    RowPlan plan = plan_row(row);
    plan_streams(&plan);
    for (const PlannedAction& planned : plan.actions) EXPECT_FALSE(planned.on_side[0]);
  }
}

}  // namespace
}  // namespace pipewright::executor
