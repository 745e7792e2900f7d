// Lower bounds against schedules that are known to exist: exact optima of small problems, found by
// trying every order, and the best of many random schedules of larger ones. No schedule may cost
// less than a bound.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "pipewright/schedule/bounds/bounds.h"
#include "tests/schedule/bounds/plain_orders.h"
#include "tests/schedule/bounds/random_problems.h"

namespace pipewright::tests {
namespace {

using schedule::Bound;
using schedule::BoundTerm;
using schedule::Memory;
using schedule::Problem;
using schedule::StageWork;
using schedule::Ticks;

#ifdef PIPEWRIGHT_WHOLE_BOX
constexpr int kRandomInstances = 100'000, kExactInstances = 20'000, kExactV = 20;
#else
constexpr int kRandomInstances = 2'000, kExactInstances = 500, kExactV = 1;
#endif

std::string describe(const Problem& problem, const Bound& bound) {
  std::string text = "bound " + std::string(bound.name) + " of ranks " +
                     std::to_string(bound.rank) + ", " + std::to_string(bound.other) +
                     "; placement " + problem.placement.to_string() + ", " +
                     std::to_string(problem.num_microbatches) + " microbatches\n";
  for (const StageWork& work : problem.stages) {
    for (const int64_t number :
         {work.forward, work.backward_input, work.backward_weight, work.output_transfer,
          work.gradient_transfer, work.activation, work.weight_input})
      text += std::to_string(number) + " ";
    text += "\n";
  }
  for (const Memory limit : problem.memory_limits) text += std::to_string(limit) + " ";
  return text;
}

// Returns whether the bound was met exactly.
bool expect_sound(const Problem& problem, Ticks cost) {
  for (const Bound& bound : schedule::lower_bounds(problem)) {
    EXPECT_LE(bound.value, cost) << describe(problem, bound);
    Ticks sum = 0;
    for (const BoundTerm& term : bound.terms) sum += term.value;
    EXPECT_EQ(sum, bound.value) << bound.name;
  }
  return schedule::lower_bound(problem).value == cost;
}

// ---- every order of a small problem

TEST(SoundnessTest, NoBoundIsAboveTheOptimumOfSmallProblems) {
  Random random(1);
  int solved = 0, met = 0;
  const auto check = [&](ir::Placement placement, int microbatches) {
    const Problem problem = random_problem(random, std::move(placement), microbatches);
    const std::optional<Ticks> optimum = optimum_of(problem);
    if (!optimum) return;
    ++solved;
    met += expect_sound(problem, *optimum);
  };
  for (int instance = 0; instance < kExactInstances; ++instance) {
    check(ir::Placement::loop(2, 2), random.number(1, 3));
    check(ir::Placement::v(1, 2), random.number(1, 2));
    if (instance % 25 == 0) check(ir::Placement::loop(2, 2), 4);
    if (instance % 25 == 0) check(ir::Placement::loop(3, 3), 3);
    if (instance % 25 == 0) check(ir::Placement::custom(2, {0, 1, 0}), 2);
  }
  for (int instance = 0; instance < kExactV; ++instance) check(ir::Placement::v(2, 4), 2);
  EXPECT_GT(solved, kExactInstances);
  EXPECT_GT(met, solved / 3) << "the bounds say little";
  RecordProperty("solved", solved);
  RecordProperty("met", met);
}

// ---- random orders of larger problems

// Runs random ready actions, of those that the memory still allows, with random priorities by stage
// and kind; nullopt if it gets stuck.
std::optional<Orders> random_orders(const Problem& problem, Random& random) {
  const auto ranks = static_cast<size_t>(problem.num_ranks());
  const int stages = problem.num_stages();
  Orders orders(ranks);
  std::vector<int> done(3 * static_cast<size_t>(stages));
  const auto count = [&](int stage, int kind) -> int& {
    return done[3 * static_cast<size_t>(stage) + static_cast<size_t>(kind)];
  };
  // Times as in cost_of(), so that the ranks advance together.
  std::vector<Ticks> time(ranks);
  std::vector<std::vector<Ticks>> ends(done.size());
  std::vector<Memory> used(ranks);
  std::vector<int> priority(done.size());
  for (int& one : priority) one = random.number(0, 100);
  const int patience = random.chance(50) ? 0 : random.number(0, 20);
  for (int left = 3 * stages * problem.num_microbatches; left > 0; --left) {
    struct Choice {
      Ticks start;
      int priority;
      Letter letter;
      size_t rank;
    };
    std::optional<Choice> best;
    for (int stage = 0; stage < stages; ++stage) {
      const auto rank = static_cast<size_t>(problem.placement.rank_of(stage));
      for (int kind = 0; kind < 3; ++kind) {
        const int number = count(stage, kind);
        if (number == problem.num_microbatches) continue;
        const int from = kind == 0                         ? stage - 1
                         : kind == 1 && stage + 1 < stages ? stage + 1
                                                           : stage;
        const int from_kind = kind == 2 || from != stage ? (kind == 2 ? 1 : kind) : 0;
        Ticks input = 0;
        if (from >= 0) {
          const auto& inputs = ends[3 * static_cast<size_t>(from) + static_cast<size_t>(from_kind)];
          if (static_cast<size_t>(number) >= inputs.size()) continue;
          input = inputs[static_cast<size_t>(number)];
          if (from < stage) input += problem.work(from).output_transfer;
          if (from > stage) input += problem.work(from).gradient_transfer;
        }
        // Keep room for the later stages of the rank, or they can never run.
        Memory need = peak_change_of(problem, {stage, kind});
        if (kind == 0) {
          for (const int other : problem.placement.stages_of(static_cast<int>(rank))) {
            if (other > stage && count(other, 0) == count(other, 1))
              need += problem.work(other).activation;
          }
        }
        if (need > 0 && used[rank] + need > problem.memory_limit(static_cast<int>(rank))) continue;
        const Choice choice{std::max(time[rank], input),
                            priority[3 * static_cast<size_t>(stage) + static_cast<size_t>(kind)],
                            {stage, kind},
                            rank};
        const auto key = [&](const Choice& one) {
          return std::pair(one.start + (one.letter.kind == 2 ? patience : 0), one.priority);
        };
        if (!best || key(choice) < key(*best)) best = choice;
      }
    }
    if (!best) return std::nullopt;
    const auto [start, ignored, letter, rank] = *best;
    time[rank] = start + time_of(problem, letter, count(letter.stage, letter.kind)++);
    ends[3 * static_cast<size_t>(letter.stage) + static_cast<size_t>(letter.kind)].push_back(
        time[rank]);
    used[rank] += change_of(problem, letter);
    orders[rank].push_back(letter);
  }
  return orders;
}

// Moves single actions as long as that does not raise the cost.
Ticks improved(const Problem& problem, Orders orders, Ticks cost, int moves, Random& random) {
  for (; moves > 0; --moves) {
    const int rank = random.number(0, problem.num_ranks() - 1);
    std::vector<Letter>& row = orders[static_cast<size_t>(rank)];
    if (row.size() < 2) continue;
    const int from = random.number(0, static_cast<int>(row.size()) - 1);
    const int to = std::clamp(from + random.number(-3, 3), 0, static_cast<int>(row.size()) - 1);
    const std::vector<Letter> before = row;
    const Letter letter = row[static_cast<size_t>(from)];
    row.erase(row.begin() + from);
    row.insert(row.begin() + to, letter);
    const auto now = fits(problem, rank, row) ? cost_of(problem, orders) : std::nullopt;
    if (now && *now <= cost) {
      cost = *now;
    } else {
      row = before;
    }
  }
  return cost;
}

TEST(SoundnessTest, NoBoundIsAboveTheCostOfRandomSchedules) {
  Random random(2);
  int found = 0, met = 0;
  for (int instance = 0; instance < kRandomInstances; ++instance) {
    const Problem problem =
        random_problem(random, random_placement(random, random.number(1, 5)), random.number(1, 12));
    Ticks best = std::numeric_limits<Ticks>::max();
    for (int attempt = 0; attempt < 6; ++attempt) {
      const std::optional<Orders> orders = random_orders(problem, random);
      if (!orders) continue;
      const std::optional<Ticks> cost = cost_of(problem, *orders);
      ASSERT_TRUE(cost);
      best = std::min(best, improved(problem, *orders, *cost, 20, random));
    }
    if (best == std::numeric_limits<Ticks>::max()) continue;
    ++found;
    met += expect_sound(problem, best);
  }
  EXPECT_GT(found, kRandomInstances / 2);
  EXPECT_GT(met, found / 20) << "the schedules are poor, or the bounds";
  RecordProperty("found", found);
  RecordProperty("met", met);
}

}  // namespace
}  // namespace pipewright::tests
