// The fast checks of valid schedules against the checks that find and word the errors, on random
// schedules with one or two changes.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "pipewright/ir/dependencies.h"
#include "pipewright/schedule/lowering/lower.h"
#include "pipewright/schedule/verify/verify_checks.h"
#include "pipewright/schedules/registry.h"
#include "tests/channel_model/programs.h"

namespace pipewright::schedule {
namespace {

using ir::ActionKind;

// ChannelGraph::transfers_match(), by looking at each action and searching its row.
bool match_by_name(const ir::Program& program, const ChannelGraph& graph) {
  for (size_t rank = 0; rank < program.rows.size(); ++rank) {
    const ir::Row& row = program.rows[rank];
    for (size_t step = 0; step < row.size(); ++step) {
      if (!ir::is_transfer(row[step].kind())) continue;
      const ir::ActionPart part = row[step].parts()[0];
      const auto transfer = ir::partner_of(part, program.placement);
      const uint32_t partner = graph.partner_of(graph.number_of(rank, step));
      if (!transfer || transfer->from == transfer->to || partner == ChannelGraph::kNone)
        return false;
      const bool sends = ir::is_send(part.kind());
      const ir::ActionPart other = sends ? transfer->receive : transfer->send;
      const ChannelGraph::Cell cell = graph.cell_of(partner);
      if (static_cast<int>(cell.rank) != (sends ? transfer->to : transfer->from) ||
          program.rows[cell.rank][cell.step] !=
              ir::Action(other.kind(), other.stage(), part.microbatch()))
        return false;
      const bool is_used = std::any_of(
          row.begin() + static_cast<std::ptrdiff_t>(step), row.end(),
          [&](const ir::Action& action) {
            return std::ranges::any_of(action.parts(), [&](ir::ActionPart user) {
              return user.stage() == part.stage() && user.microbatch() == part.microbatch() &&
                     (part.kind() == ActionKind::kRecvF ? user.kind() == ActionKind::kForward
                                                        : ir::gives_input_gradient(user.kind()));
            });
          });
      if (!sends && !is_used) return false;
    }
  }
  return true;
}

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

  // The program, for checks that are not about REDUCE_GRAD.
  static ir::Program without_reductions(ir::Program program) {
    for (ir::Row& row : program.rows) {
      std::erase_if(row, [](const ir::Action& action) {
        return action.kind() == ir::ActionKind::kReduceGrad ||
               action.kind() == ir::ActionKind::kWaitReduceGrad;
      });
    }
    return program;
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
    // Whether WAITs are missing is another check's.
    ir::Program program = *lower(random_order(), {.torch = ir::Torch::k2_11}, &diagnostics);
    for (size_t changes = below(3); changes > 0; --changes) change(&program);
    const bool fast = is_complete_in_order(program, ir::Level::kComputeComms);
    const auto index = WorkIndex::build(program, &diagnostics);
    if (!index) {
      ASSERT_FALSE(fast) << program.name << " round " << round;
      ++incomplete;
      continue;
    }
    const auto graph = ChannelGraph::of_program(program, ir::ChannelModel::kEdge, 0);
    ASSERT_EQ(graph.transfers_match(), match_by_name(program, graph))
        << program.name << " round " << round;
    if (!graph.transfers_match()) continue;
    check_data_flow(program, *index, true, &diagnostics);
    ASSERT_EQ(fast, !diagnostics.has_errors()) << program.name << " round " << round;
    (fast ? valid : misordered) += 1;
  }
  EXPECT_GT(valid, 1000);
  EXPECT_GT(incomplete, 500);
  EXPECT_GT(misordered, 100);
}

// The walk along all rows against the checks that it replaces.
TEST_F(CompleteInOrderTest, RunsOnEdgesIfNoCheckFindsAnError) {
  int valid = 0, misordered = 0, swapped = 0, blocked = 0;
  for (int round = 0; round < 6000; ++round) {
    ir::Diagnostics diagnostics;
    // Of the second kind, many swap or deadlock.
    ir::Program program = round % 2 == 0 ? *lower(random_order(), {}, &diagnostics)
                                         : channel_model::random_program(random_);
    for (size_t changes = below(3); changes > 0; --changes) change(&program);
    const bool runs = runs_on_edges(program, ir::kinds_in(program.rows));
    const auto index = WorkIndex::build(program, &diagnostics);
    if (index) check_data_flow(program, *index, false, &diagnostics);
    const ir::Program of_sends = without_reductions(program);
    check_waits(of_sends, ir::kinds_in(of_sends.rows), false, &diagnostics);
    if (diagnostics.has_errors()) {
      ASSERT_FALSE(runs) << program.name << " round " << round;
      ++misordered;
      continue;
    }
    const auto graph = ChannelGraph::of_program(program, ir::ChannelModel::kEdge, 0);
    check_pairing(program, graph, &diagnostics);
    const bool swaps = diagnostics.has_errors(), deadlocks = !graph.blocked().empty();
    ASSERT_EQ(runs, !swaps && !deadlocks) << program.name << " round " << round;
    valid += runs;
    swapped += swaps;
    blocked += deadlocks;
  }
  EXPECT_GT(valid, 1000);
  EXPECT_GT(misordered, 1000);
  EXPECT_GT(swapped, 100);
  EXPECT_GT(blocked, 100);
}

bool rows_run(const std::vector<std::string>& rows, int microbatches) {
  const ir::Program program =
      channel_model::program_of(ir::Placement::loop(2, 2), microbatches, rows);
  return runs_on_edges(program, ir::kinds_in(program.rows));
}

TEST(RunsOnEdgesTest, EachTransferHasTwoEnds) {
  EXPECT_TRUE(rows_run({"0F0 0SEND_F0", "1RECV_F0 1F0"}, 1));
  EXPECT_FALSE(rows_run({"0F0 0SEND_F0 0RECV_B0", "1RECV_F0 1F0"}, 1));
  EXPECT_FALSE(rows_run({"0F0 0SEND_F0", "1RECV_F0 1F0 1SEND_F0"}, 1));  // to no stage
  EXPECT_FALSE(rows_run({"0F0 0SEND_F0 0SEND_F0", "1RECV_F0 1F0"}, 1));
  EXPECT_FALSE(rows_run({"0F0 0SEND_F0", "1RECV_F0 1RECV_F0 1F0"}, 1));
}

TEST(RunsOnEdgesTest, ACompoundAwaitsTheInputsOfBothParts) {
  const std::string compound = "0F0 0SEND_F0 0RECV_B0 (0F1;0B0)OVERLAP_F_B 0SEND_F1 0RECV_B1 0B1";
  EXPECT_TRUE(rows_run({compound, "1RECV_F0 1F0 1B0 1SEND_B0 1RECV_F1 1F1 1B1 1SEND_B1"}, 2));
  EXPECT_FALSE(rows_run({compound, "1RECV_F0 1F0 1RECV_F1 1F1 1B0 1SEND_B0 1B1 1SEND_B1"}, 2));
}

}  // namespace
}  // namespace pipewright::schedule
