// The fast check of valid schedules against the checks that find and word the errors, on random
// schedules with one or two changes.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "pipewright/schedule/lowering/lower.h"
#include "pipewright/schedule/verify/verify_checks.h"
#include "pipewright/schedules/registry.h"

namespace pipewright::schedule {
namespace {

class CompleteInOrderTest : public testing::Test {
 protected:
  size_t below(size_t limit) { return random_() % limit; }

  ir::ComputeOrder random_order() {
    const auto all = schedules::all_schedules();
    for (;;) {
      const schedules::ScheduleSpec& spec = *all[below(all.size())];
      const int ranks = 1 + static_cast<int>(below(4));
      const schedules::Shape shape{ranks, schedules::default_stages(spec, ranks),
                                   1 + static_cast<int>(below(8))};
      if (spec.plan_rows == nullptr && !schedules::shape_error(spec, shape))
        return schedules::make_order(spec, shape);
    }
  }

  // Swaps, removes, repeats or renames an action.
  void change(ir::Schedule* schedule) {
    ir::Row& row = schedule->rows[below(schedule->rows.size())];
    if (row.size() < 2) return;
    const size_t step = below(row.size() - 1);
    const auto at = row.begin() + static_cast<std::ptrdiff_t>(step);
    switch (below(4)) {
      case 0:
        std::swap(row[step], row[step + 1]);
        return;
      case 1:
        row.erase(at);
        return;
      case 2:
        row.insert(at, row[below(row.size())]);
        return;
      default:
        if (row[step].is_idle() || row[step].is_compound()) return;
        const ir::ActionPart part = row[step].parts()[0];
        const ir::ActionKind kind = ir::action_kinds()[below(4)].kind;
        if (ir::is_compute(part.kind())) row[step] = {kind, part.stage(), part.microbatch()};
    }
  }

  std::mt19937 random_{11};
};

TEST_F(CompleteInOrderTest, AgreesOnOrders) {
  int valid = 0, invalid = 0;
  for (int round = 0; round < 4000; ++round) {
    ir::ComputeOrder order = random_order();
    for (size_t changes = below(3); changes > 0; --changes) change(&order);
    ir::Diagnostics diagnostics;
    const auto index = WorkIndex::build(order, &diagnostics);
    if (index) check_local_order(order, *index, &diagnostics);
    const bool fast = is_complete_in_order(order, ir::Level::kComputeOnly);
    ASSERT_EQ(fast, !diagnostics.has_errors()) << order.name << " round " << round;
    (fast ? valid : invalid) += 1;
  }
  EXPECT_GT(valid, 1000);
  EXPECT_GT(invalid, 1000);
}

// For a program whose transfers do not match, the fast check promises nothing.
TEST_F(CompleteInOrderTest, AgreesOnPrograms) {
  int valid = 0, incomplete = 0, misordered = 0;
  for (int round = 0; round < 6000; ++round) {
    ir::Diagnostics diagnostics;
    ir::Program program = *lower(random_order(), {}, &diagnostics);
    for (size_t changes = below(3); changes > 0; --changes) change(&program);
    const bool fast = is_complete_in_order(program, ir::Level::kComputeComms);
    const auto index = WorkIndex::build(program, &diagnostics);
    if (!index) {
      ASSERT_FALSE(fast) << program.name << " round " << round;
      ++incomplete;
      continue;
    }
    const auto graph = ChannelGraph::of_program(program, ir::ChannelModel::kEdge, 0);
    if (!transfers_match(program, graph)) continue;
    check_data_flow(program, *index, true, &diagnostics);
    ASSERT_EQ(fast, !diagnostics.has_errors()) << program.name << " round " << round;
    (fast ? valid : misordered) += 1;
  }
  EXPECT_GT(valid, 1000);
  EXPECT_GT(incomplete, 500);
  EXPECT_GT(misordered, 100);
}

}  // namespace
}  // namespace pipewright::schedule
