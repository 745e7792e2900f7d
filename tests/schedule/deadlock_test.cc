// Explanations of deadlocks: the shortest cycle, against a search from every action; and the errors
// of compute orders that cannot run.
#include "pipewright/schedule/graph/deadlock.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>

#include "pipewright/schedule/lowering/lower.h"
#include "pipewright/schedule/verify/verify.h"
#include "pipewright/schedules/registry.h"

namespace pipewright::schedule {
namespace {

using K = ir::ActionKind;

// The length of the shortest cycle, by breadth-first searches from every action; 0 for none.
size_t shortest_length(const std::vector<Wait>& waits) {
  std::map<uint32_t, std::vector<uint32_t>> next;
  for (const Wait& wait : waits) next[wait.action].push_back(wait.blocked_by);
  size_t best = 0;
  for (const auto& [start, unused] : next) {
    std::set<uint32_t> frontier = {start}, seen;
    for (size_t depth = 1; !frontier.empty(); ++depth) {
      std::set<uint32_t> further;
      for (const uint32_t one : frontier) further.insert(next[one].begin(), next[one].end());
      if (further.contains(start)) {
        if (best == 0 || depth < best) best = depth;
        break;
      }
      frontier.clear();
      for (const uint32_t one : further) {
        if (seen.insert(one).second) frontier.insert(one);
      }
    }
  }
  return best;
}

TEST(DeadlockTest, TheShortestCycleOfRandomWaits) {
  std::mt19937 random(7);
  std::set<size_t> lengths;
  for (int round = 0; round < 3000; ++round) {
    const uint32_t size = 1 + random() % 12;
    std::vector<Wait> waits;
    for (uint32_t action = 0; action < size; ++action) {
      const int edges = random() % 3 == 0 ? 2 : 1;
      for (int edge = 0; edge < edges; ++edge) {
        const auto other = static_cast<uint32_t>(random() % size);
        waits.push_back({10 * action, 10 * other + 1, 10 * other});
      }
    }
    const std::vector<Wait> cycle = short_cycle(waits);
    ASSERT_EQ(cycle.size(), shortest_length(waits)) << "round " << round;
    for (size_t at = 0; at < cycle.size(); ++at) {
      EXPECT_NE(std::ranges::find(waits, cycle[at]), waits.end());
      EXPECT_EQ(cycle[at].blocked_by, cycle[(at + 1) % cycle.size()].action);
      EXPECT_LE(cycle[0].action, cycle[at].action);
    }
    lengths.insert(cycle.size());
  }
  EXPECT_GE(lengths.size(), 6u);
  EXPECT_TRUE(short_cycle({}).empty());
}

// A ring: each rank waits for the RECV from the rank before it, which sends only afterwards. The
// cycle has a compute and a RECV of every rank.
TEST(DeadlockTest, ACycleThroughEveryRank) {
  for (const int ranks : {2, 3, 1000}) {
    ir::ComputeOrder order;
    order.placement = ir::Placement::loop(ranks, 2 * ranks);
    order.num_microbatches = 1;
    // Rank r computes stage r + P, which needs stage r + P - 1, before stage r.
    for (int rank = 0; rank < ranks; ++rank)
      order.rows.push_back(
          {ir::Action(K::kForward, rank + ranks, 0), ir::Action(K::kForward, rank, 0)});
    const ChannelGraph graph = ChannelGraph::of_order(order);
    const std::vector<uint32_t> blocked = graph.blocked();
    EXPECT_EQ(blocked.size(), 2 * static_cast<size_t>(ranks));
    // Rank 0 waits for stage P - 1, which comes after stage 2P - 1 on the last rank, and so on.
    const std::vector<Wait> cycle = short_cycle(waits_of(graph, blocked));
    EXPECT_EQ(cycle.size(), static_cast<size_t>(ranks));
    EXPECT_EQ(cycle[0].action, 0u);
    EXPECT_EQ(describe(cycle[0], graph, order),
              "`" + std::to_string(ranks) + "F0` on rank 0 waits for `" +
                  std::to_string(ranks - 1) + "F0` on rank " + std::to_string(ranks - 1) +
                  ", which comes after `" + std::to_string(2 * ranks - 1) + "F0`");
  }
}

// Rings of actions that are all blocked by two others: a search from each of them would take a time
// quadratic in the cycle.
TEST(DeadlockTest, LongRingsOfActionsWithTwoEdges) {
  constexpr uint32_t kSize = 100'000;
  const auto ring = [](uint32_t first, uint32_t second) {
    std::vector<Wait> waits;
    for (uint32_t action = 0; action < kSize; ++action) {
      for (const uint32_t distance : {first, second}) {
        const uint32_t by = (action + kSize - distance) % kSize;
        waits.push_back({action, by, by});
      }
    }
    return waits;
  };
  // Two inputs from the same action: there is one cycle.
  const std::vector<Wait> around = short_cycle(ring(1, 1));
  ASSERT_EQ(around.size(), kSize);
  for (uint32_t at = 0; at < kSize; ++at) EXPECT_EQ(around[at].action, (kSize - at) % kSize);
  // Every other action, whichever edge comes first.
  EXPECT_EQ(short_cycle(ring(1, 2)).size(), kSize / 2);
  EXPECT_EQ(short_cycle(ring(2, 1)).size(), kSize / 2);
}

// With too many actions for a search from each of them, the result is a cycle all the same.
TEST(DeadlockTest, ASearchThatEndsEarlyReturnsACycle) {
  constexpr uint32_t kSize = 10'000;
  std::vector<Wait> waits;
  for (uint32_t action = 0; action < kSize; ++action) {
    for (const uint32_t distance : {1u, 3u}) {
      const uint32_t by = (action + kSize - distance) % kSize;
      waits.push_back({action, by, by});
    }
  }
  // The last two actions of the ring block each other.
  waits[2 * (kSize - 2)].waits_for = waits[2 * (kSize - 2)].blocked_by = kSize - 1;
  const std::vector<Wait> cycle = short_cycle(waits);
  ASSERT_FALSE(cycle.empty());
  EXPECT_LE(cycle.size(), kSize / 3 + 2);
  for (size_t at = 0; at < cycle.size(); ++at) {
    EXPECT_NE(std::ranges::find(waits, cycle[at]), waits.end());
    EXPECT_EQ(cycle[at].blocked_by, cycle[(at + 1) % cycle.size()].action);
  }
}

std::string error_of_lowering(const ir::ComputeOrder& order) {
  ir::Diagnostics diagnostics;
  EXPECT_FALSE(lower(order, {}, &diagnostics));
  EXPECT_EQ(diagnostics.total(), 1u);
  std::string text = diagnostics.kept()[0].message;
  for (const ir::Note& note : diagnostics.kept()[0].notes) text += "\n" + note.message;
  return text;
}

// lower() reports orders that verify() would not even check for cycles.
TEST(DeadlockTest, OrdersThatCannotBeLowered) {
  ir::ComputeOrder order;
  order.placement = ir::Placement::custom(2, {0, 1, 1});
  order.num_microbatches = 1;
  order.rows = {{ir::Action(K::kForward, 0, 0)},
                {ir::Action(K::kForward, 2, 0), ir::Action(K::kForward, 1, 0)}};
  EXPECT_EQ(error_of_lowering(order),
            "the order cannot run: cycle of 1 action\n"
            "`2F0` on rank 1 waits for `1F0` on rank 1, which comes after `2F0`");
  order.rows = {{}, {ir::Action(K::kForward, 1, 0), ir::Action(K::kForward, 2, 0)}};
  EXPECT_EQ(error_of_lowering(order),
            "the order cannot run: cycle of 1 action\n"
            "`1F0` on rank 1 waits for a result that no action computes");
}

// A compound misses both of its inputs: of the two cycles, the shorter one is reported.
TEST(DeadlockTest, ACompoundWaitsForTwoInputs) {
  ir::ComputeOrder order;
  order.placement = ir::Placement::loop(3, 3);
  order.num_microbatches = 2;
  const ir::Action compound = ir::Action::overlap({K::kForward, 1, 1}, {K::kBackward, 1, 0});
  order.rows = {{ir::Action(K::kForward, 0, 0), ir::Action(K::kBackward, 0, 0),
                 ir::Action(K::kForward, 0, 1), ir::Action(K::kBackward, 0, 1)},
                {ir::Action(K::kForward, 1, 0), compound, ir::Action(K::kBackward, 1, 1)},
                {ir::Action(K::kForward, 2, 0), ir::Action(K::kForward, 2, 1),
                 ir::Action(K::kBackward, 2, 0), ir::Action(K::kBackward, 2, 1)}};
  const ChannelGraph graph = ChannelGraph::of_order(order);
  const std::vector<Wait> waits = waits_of(graph, graph.blocked());
  EXPECT_EQ(std::ranges::count(waits, graph.number_of(1, 1), &Wait::action), 2);
  EXPECT_EQ(short_cycle(waits).size(), 2u);
}

}  // namespace
}  // namespace pipewright::schedule
