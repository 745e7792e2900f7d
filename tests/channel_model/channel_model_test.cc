// The channel model as an executable specification: on a table of tiny programs with verdicts
// derived by hand, and on thousands of random ones, the plain interpreter, the verifier and the
// simulator agree.
#include <gtest/gtest.h>

#include <random>

#include "pipewright/schedule/graph/channel_graph.h"
#include "pipewright/schedule/lowering/add_send_recv.h"
#include "pipewright/schedule/simulate/simulate.h"
#include "pipewright/schedule/verify/verify.h"
#include "pipewright/schedules/registry.h"
#include "tests/channel_model/interpreter.h"
#include "tests/channel_model/programs.h"
#include "tests/channel_model/random.h"
#include "tests/channel_model/ticking_clock.h"

namespace pipewright::channel_model {
namespace {

// Those of the table; random programs run with all.
constexpr ir::ChannelCapacity kCapacities[] = {0, 1, ir::kUnboundedCapacity};
constexpr ir::ChannelCapacity kAllCapacities[] = {0, 1, 2, 3, ir::kUnboundedCapacity};

TEST(ChannelModelTest, TableOfTinyPrograms) {
  for (const Case& one : cases()) {
    const ir::Program program = program_of(one.placement, 3, one.rows);
    const std::pair<ir::ChannelModel, const char*> verdicts[] = {
        {ir::ChannelModel::kRank, one.rank},
        {ir::ChannelModel::kPeer, one.peer},
        {ir::ChannelModel::kEdge, one.edge}};
    for (const auto& [model, expected] : verdicts) {
      for (size_t index = 0; index < std::size(kCapacities); ++index) {
        SCOPED_TRACE(testing::Message()
                     << one.name << ", " << ir::describe_channels(model, kCapacities[index]));
        Interpreter interpreter(program, model, kCapacities[index]);
        EXPECT_EQ(interpreter.deadlocks(), expected[index] == 'D');
        EXPECT_TRUE(interpreter.confluent());
        EXPECT_EQ(interpreter.swaps(), one.swaps);
        const auto graph = schedule::ChannelGraph::of_program(program, model, kCapacities[index]);
        EXPECT_EQ(!graph.blocked().empty(), expected[index] == 'D');
      }
    }
  }
}

// The simulator computes the same times as the ticking clock.
void expect_same_times(const ir::Program& program, const schedule::ChannelGraph& graph,
                       ir::ChannelModel model, ir::ChannelCapacity capacity, std::mt19937& random) {
  const auto below = [&](int limit) {
    return static_cast<int>(random() % static_cast<unsigned>(limit));
  };
  schedule::Costs costs;
  costs.forward = 1 + below(3);
  costs.backward_input = 1 + below(3);
  costs.backward_weight = 1 + below(2);
  costs.link.latency = below(4);
  const ir::Timeline timeline = schedule::simulate(graph, program, costs);
  const std::vector<std::vector<int>> ends = TickingClock(program, model, capacity, costs).run();
  for (size_t rank = 0; rank < program.rows.size(); ++rank) {
    for (size_t step = 0; step < program.rows[rank].size(); ++step)
      ASSERT_EQ(timeline.at(rank, step).end, ends[rank][step])
          << "rank " << rank << " step " << step << ", " << ir::describe_channels(model, capacity);
  }
}

TEST(ChannelModelTest, VerifierSimulatorAndInterpreterAgreeOnRandomPrograms) {
  std::mt19937 random(seed_or(42));
  int deadlocks = 0, swaps = 0, fine = 0;
  for (int round = 0; round < rounds_or(1500) && !HasFailure(); ++round) {
    const ir::Program program = random_program(random);
    for (const ir::ChannelModelInfo& model : ir::channel_models()) {
      for (const ir::ChannelCapacity capacity : kAllCapacities) {
        ir::Diagnostics diagnostics;
        const bool valid = schedule::verify(program, {model.model, capacity, false}, &diagnostics);
        bool deadlock = false, swap = false;
        for (const ir::Diagnostic& diagnostic : diagnostics.kept()) {
          deadlock = deadlock || diagnostic.rule == ir::Rule::kDeadlock;
          swap = swap || diagnostic.rule == ir::Rule::kSwap;
        }
        Interpreter interpreter(program, model.model, capacity);
        EXPECT_EQ(deadlock, interpreter.deadlocks());
        EXPECT_TRUE(interpreter.confluent());
        EXPECT_EQ(swap, interpreter.swaps());
        EXPECT_EQ(valid, !deadlock && !swap);
        const auto graph = schedule::ChannelGraph::of_program(program, model.model, capacity);
        EXPECT_EQ(!graph.blocked().empty(), deadlock);
        if (!deadlock) expect_same_times(program, graph, model.model, capacity, random);
        deadlocks += deadlock;
        swaps += swap;
        fine += valid;
      }
    }
  }
  EXPECT_GT(deadlocks, 500);
  EXPECT_GT(swaps, 500);
  EXPECT_GT(fine, 500);
}

}  // namespace
}  // namespace pipewright::channel_model
