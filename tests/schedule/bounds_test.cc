// Lower bounds against schedules that are known to exist: exact optima of small problems, found by
// trying every order, and the best of many random schedules of larger ones. No schedule may cost
// less than a bound.
#include "pipewright/schedule/bounds/bounds.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "pipewright/schedule/bounds/knapsack.h"

namespace pipewright::schedule {
namespace {

using search::Memory;
using search::Problem;
using search::StageWork;
using search::Ticks;

#ifdef PIPEWRIGHT_WHOLE_BOX
constexpr int kRandomInstances = 100'000, kExactInstances = 20'000, kExactV = 20;
#else
constexpr int kRandomInstances = 2'000, kExactInstances = 500, kExactV = 1;
#endif

// ---- orders and their cost, written out here

// F, I or W of a stage. The k-th occurrence in a row is microbatch k.
struct Letter {
  int stage;
  int kind;  // 0 for F, 1 for I, 2 for W
};
using Orders = std::vector<std::vector<Letter>>;

Ticks time_of(const Problem& problem, Letter letter, int microbatch) {
  const StageWork& work = problem.work(letter.stage);
  const Ticks base = letter.kind == 0   ? work.forward
                     : letter.kind == 1 ? work.backward_input
                                        : work.backward_weight;
  return problem.scaled(base, microbatch);
}

Memory change_of(const Problem& problem, Letter letter) {
  const StageWork& work = problem.work(letter.stage);
  return letter.kind == 0   ? work.activation
         : letter.kind == 1 ? work.weight_input - work.activation
                            : -work.weight_input;
}

// What the rank has in use while the action runs, beside what it had before.
Memory peak_change_of(const Problem& problem, Letter letter) {
  const Memory recomputed = letter.kind == 1 ? problem.work(letter.stage).recomputed : 0;
  return std::max(recomputed, change_of(problem, letter));
}

// The cost of running every action as soon as it can; nullopt for a deadlock.
std::optional<Ticks> cost_of(const Problem& problem, const Orders& orders) {
  const auto stages = static_cast<size_t>(problem.num_stages());
  const auto microbatches = static_cast<size_t>(problem.num_microbatches);
  std::vector<Ticks> end(3 * stages * microbatches, -1);
  const auto end_of = [&](int stage, int kind, int microbatch) -> Ticks& {
    return end[(3 * static_cast<size_t>(stage) + static_cast<size_t>(kind)) * microbatches +
               static_cast<size_t>(microbatch)];
  };
  std::vector<int> done(3 * stages);
  std::vector<size_t> next(orders.size());
  std::vector<Ticks> time(orders.size()), start(orders.size(), -1);
  for (bool progress = true; progress;) {
    progress = false;
    for (size_t rank = 0; rank < orders.size(); ++rank) {
      for (; next[rank] < orders[rank].size(); ++next[rank]) {
        const auto [stage, kind] = orders[rank][next[rank]];
        int& count = done[3 * static_cast<size_t>(stage) + static_cast<size_t>(kind)];
        Ticks input = 0;
        if (kind == 2) {
          input = end_of(stage, 1, count);
        } else if (kind == 1 && stage + 1 == problem.num_stages()) {
          input = end_of(stage, 0, count);
        } else if (kind == 1 || stage > 0) {
          const int from = kind == 1 ? stage + 1 : stage - 1;
          input = end_of(from, kind, count);
          if (input >= 0)
            input += kind == 1 ? problem.work(from).gradient_transfer
                               : problem.work(from).output_transfer;
        }
        if (input < 0) break;
        const Ticks begin = std::max(time[rank], input);
        if (start[rank] < 0) start[rank] = begin;
        time[rank] = begin + time_of(problem, {stage, kind}, count);
        end_of(stage, kind, count) = time[rank];
        ++count;
        progress = true;
      }
    }
  }
  Ticks cost = 0;
  for (size_t rank = 0; rank < orders.size(); ++rank) {
    if (next[rank] < orders[rank].size()) return std::nullopt;
    cost = std::max(cost, time[rank] - start[rank]);
  }
  return cost;
}

bool fits(const Problem& problem, int rank, const std::vector<Letter>& row) {
  Memory used = 0;
  for (const Letter letter : row) {
    if (used + peak_change_of(problem, letter) > problem.memory_limit(rank)) return false;
    used += change_of(problem, letter);
  }
  return true;
}

// ---- random problems

class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}
  // From `least` to `most`, both included.
  int number(int least, int most) {
    return least + static_cast<int>(engine_() % static_cast<uint64_t>(most - least + 1));
  }
  bool chance(int percent) { return number(1, 100) <= percent; }

 private:
  std::mt19937_64 engine_;
};

ir::Placement random_placement(Random& random, int ranks) {
  switch (random.number(0, 4)) {
    case 0:
      return ir::Placement::loop(ranks, ranks);
    case 1:
      return ir::Placement::v(ranks, 2 * ranks);
    case 2:
      return ir::Placement::loop(ranks, ranks * random.number(2, 3));
    case 3:
      return ir::Placement::v(ranks, ranks * random.number(3, 4));
    default: {
      std::vector<int> rank_of_stage;
      for (int stage = random.number(ranks, 3 * ranks); stage > 0; --stage)
        rank_of_stage.push_back(random.number(0, ranks - 1));
      return ir::Placement::custom(ranks, std::move(rank_of_stage));
    }
  }
}

Problem random_problem(Random& random, ir::Placement placement, int microbatches) {
  Problem problem{.placement = std::move(placement),
                  .num_microbatches = microbatches,
                  .stages = {},
                  .memory_limits = {}};
  const bool same_costs = random.chance(40), same_memory = random.chance(60);
  const bool split = random.chance(85);
  problem.splits_backward = split;
  const auto draw = [&] {
    StageWork work{.forward = random.number(1, 20),
                   .backward_input = random.number(1, 20),
                   .backward_weight = split ? random.number(0, 20) : 0};
    work.weight_input = split ? random.number(0, 3) : 0;
    work.activation = random.number(work.weight_input == 0, 5);  // also below weight_input
    work.recomputed = random.chance(20) ? random.number(0, 5) : 0;
    return work;
  };
  const StageWork common = draw();
  const int transfer = random.chance(40) ? 0 : random.number(1, 10);
  for (int stage = 0; stage < problem.num_stages(); ++stage) {
    StageWork work = draw();
    if (same_costs)
      work = {common.forward,  common.backward_input, common.backward_weight, 0, 0,
              work.activation, work.weight_input};
    if (same_memory) {
      work.activation = common.activation;
      work.weight_input = common.weight_input;
    }
    const auto crosses = [&](int to) {
      return to >= 0 && to < problem.num_stages() &&
             problem.placement.rank_of(to) != problem.placement.rank_of(stage);
    };
    if (crosses(stage + 1))
      work.output_transfer = same_costs ? transfer : random.number(0, transfer);
    if (crosses(stage - 1))
      work.gradient_transfer = same_costs ? transfer : random.number(0, transfer);
    problem.stages.push_back(work);
  }
  for (int rank = 0; rank < problem.num_ranks(); ++rank) {
    Memory whole = 0;  // of one microbatch: the least that a schedule needs
    for (const int stage : problem.placement.stages_of(rank))
      whole += problem.work(stage).activation;
    problem.memory_limits.push_back(
        random.chance(10) ? search::kNoLimit : whole + random.number(0, 4 * problem.num_stages()));
  }
  if (random.chance(15)) {
    for (int microbatch = 0; microbatch < microbatches; ++microbatch)
      problem.microbatch_scale.push_back(random.number(5, 20) / 10.0);
  }
  return problem;
}

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
  for (const Bound& bound : lower_bounds(problem)) {
    EXPECT_LE(bound.value, cost) << describe(problem, bound);
    Ticks sum = 0;
    for (const BoundTerm& term : bound.terms) sum += term.value;
    EXPECT_EQ(sum, bound.value) << bound.name;
  }
  return lower_bound(problem).value == cost;
}

// ---- every order of a small problem

// All rows of a rank that keep to the order of each microbatch on it and fit in memory.
std::vector<std::vector<Letter>> all_rows(const Problem& problem, int rank) {
  const std::vector<int> stages = problem.placement.stages_of(rank);
  std::vector<std::vector<Letter>> rows;
  std::vector<Letter> row;
  std::vector<std::vector<int>> done(3, std::vector<int>(stages.size()));
  Memory used = 0;
  const auto extend = [&](const auto& self) -> void {
    bool complete = true;
    for (size_t at = 0; at < stages.size(); ++at) {
      for (int kind = 0; kind < 3; ++kind) {
        int& count = done[static_cast<size_t>(kind)][at];
        if (count == problem.num_microbatches) continue;
        complete = false;
        const int before = kind == 2                              ? done[1][at]
                           : kind == 1 && at + 1 == stages.size() ? done[0][at]
                           : kind == 1                            ? done[1][at + 1]
                           : at == 0                              ? problem.num_microbatches
                                                                  : done[0][at - 1];
        const Letter letter{stages[at], kind};
        const Memory change = change_of(problem, letter);
        if (count >= before || used + peak_change_of(problem, letter) > problem.memory_limit(rank))
          continue;
        ++count, used += change, row.push_back(letter);
        self(self);
        --count, used -= change, row.pop_back();
      }
    }
    if (complete) rows.push_back(row);
  };
  extend(extend);
  return rows;
}

// The least cost of any orders; nullopt if none fits in memory.
std::optional<Ticks> optimum_of(const Problem& problem) {
  std::vector<std::vector<std::vector<Letter>>> rows;
  for (int rank = 0; rank < problem.num_ranks(); ++rank) rows.push_back(all_rows(problem, rank));
  std::optional<Ticks> best;
  Orders orders(rows.size());
  const auto choose = [&](const auto& self, size_t rank) -> void {
    if (rank == rows.size()) {
      if (const auto cost = cost_of(problem, orders); cost && (!best || *cost < *best)) best = cost;
      return;
    }
    for (const std::vector<Letter>& row : rows[rank]) {
      orders[rank] = row;
      self(self, rank + 1);
    }
  };
  choose(choose, 0);
  return best;
}

TEST(BoundsTest, NoBoundIsAboveTheOptimumOfSmallProblems) {
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

TEST(BoundsTest, NoBoundIsAboveTheCostOfRandomSchedules) {
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

// ---- optima and closed forms from elsewhere

Problem uniform(ir::Placement placement, int microbatches, const StageWork& work, Memory limit) {
  Problem problem{.placement = std::move(placement),
                  .num_microbatches = microbatches,
                  .stages = {},
                  .memory_limits = {}};
  for (int stage = 0; stage < problem.num_stages(); ++stage) {
    problem.stages.push_back(work);
    const auto same_rank = [&](int other) {
      return other < 0 || other == problem.num_stages() ||
             problem.placement.rank_of(other) == problem.placement.rank_of(stage);
    };
    if (same_rank(stage + 1)) problem.stages.back().output_transfer = 0;
    if (same_rank(stage - 1)) problem.stages.back().gradient_transfer = 0;
  }
  problem.memory_limits.assign(static_cast<size_t>(problem.num_ranks()), limit);
  return problem;
}

// Optima that OR-tools' CP-SAT proved: https://developers.google.com/optimization.
TEST(BoundsTest, ProvedOptimaOfCpSat) {
  struct Optimum {
    int ranks, microbatches;
    Memory limit;
    Ticks cost;
  };
  // One stage per rank, F 185, I 181, W 93, transfers 6; F takes 2 units of memory, I and W free
  // one each. All bounds are met.
  for (const Optimum& one : {Optimum{2, 4, 4, 2133},
                             {2, 4, 6, 1935},
                             {2, 4, 8, 1935},
                             {2, 8, 4, 3969},
                             {2, 8, 6, 3680},
                             {2, 8, 8, 3672},
                             {3, 6, 6, 3348},
                             {3, 6, 10, 3045},
                             {3, 6, 12, 3045}}) {
    const Problem problem = uniform(ir::Placement::loop(one.ranks, one.ranks), one.microbatches,
                                    {185, 181, 93, 6, 6, 2, 1}, one.limit);
    EXPECT_EQ(lower_bound(problem).value, one.cost);
  }
  // V, all times 1; F takes one unit of memory, W frees it.
  for (const Optimum& one : {Optimum{2, 4, 2, 33},
                             {2, 4, 3, 27},
                             {2, 4, 4, 24},
                             {3, 5, 3, 44},
                             {3, 5, 4, 35},
                             {3, 5, 6, 30},
                             {4, 6, 8, 37}}) {
    const Problem problem = uniform(ir::Placement::v(one.ranks, 2 * one.ranks), one.microbatches,
                                    {1, 1, 1, 0, 0, 1, 1}, one.limit);
    const Ticks value = lower_bound(problem).value;
    EXPECT_LE(value, one.cost);
    // arXiv 2405.15362, figure 13, observes this bound for V schedules of these costs.
    EXPECT_GE(value, 6 * one.microbatches + std::max<Ticks>(0, 6 * one.ranks - 3 * one.limit - 1));
  }
}

// With k activations of memory, F + 2c >= W and I >= W, one stage per rank: rank 0 idles for
// (p-1)(I + 2c) + (p-k) F in the warm-up and for (p-1)(F + I + 2c) - (k-1)(I + W) in the cool-down.
// At k = p that is the idle time of ZB-H1, which is therefore optimal for its memory.
TEST(BoundsTest, ZbH1IsOptimal) {
  const Ticks forward = 18'522, input = 18'086, weight = 9'337, comm = 601;
  for (const int ranks : {2, 4, 8, 32}) {
    const Problem problem = uniform(ir::Placement::loop(ranks, ranks), 3 * ranks,
                                    {forward, input, weight, comm, comm, 2, 1}, 2 * ranks);
    const Bound bound = lower_bound(problem);
    EXPECT_EQ(bound.value, 3 * ranks * (forward + input + weight) +
                               (ranks - 1) * (forward + input - weight + 4 * comm));
    EXPECT_EQ(bound.name, "warm_up_and_cool_down");
    EXPECT_EQ(bound.rank, 0);
    EXPECT_EQ(bound.other, -1);
  }
}

// By hand: one rank, two microbatches, memory for one: F 3, I 5, W 2 of each in turn.
TEST(BoundsTest, EachBoundByHand) {
  const Problem one = uniform(ir::Placement::loop(1, 1), 2, {3, 5, 2, 0, 0, 1, 1}, 1);
  EXPECT_EQ(work_bound(one).value, 20);
  EXPECT_EQ(one_microbatch_bound(one).value, 10);
  EXPECT_EQ(memory_area_bound(one).value, 20);
  EXPECT_EQ(lifetimes_bound(one).value, 18);  // twice F and I, and the last W
  // Two ranks, transfers 1: a microbatch takes 2 (3 + 5) + 2 and W; memory for one on each rank.
  const Problem two = uniform(ir::Placement::loop(2, 2), 2, {3, 5, 2, 1, 1, 1, 1}, 1);
  EXPECT_EQ(one_microbatch_bound(two).value, 20);
  EXPECT_EQ(memory_area_bound(two).value, 40);
  EXPECT_EQ(memory_area_bound(two).rank, 0);
  EXPECT_EQ(lifetimes_bound(two).value, 38);
  // Rank 1 starts after F and a transfer; after its last I come a transfer, I and W of rank 0.
  const Bound nested = nested_window_bound(two);
  EXPECT_EQ(nested.rank, 0);
  EXPECT_EQ(nested.other, 1);
  EXPECT_EQ(nested.value, (3 + 1) + 20 - 2 + (1 + 5 + 2));
}

// By hand: what rank 1 has left at the end of its last F. Its microbatches take 2 units of memory
// each before I (10) and 1 before W (4), of 8; the last one is back from rank 2 after 22, and its I
// ends after 32. With u microbatches before I, and as many others before W as fit, the Is take 10 u
// and the Ws 4 u + 4 (8 - 2 u). So 22, 12 or 2 are idle where u is 1, 2 or 3, and 28, 24 or 20 of
// the Ws may be left; with u = 4 there are 16 Ws. The least difference is 2 - 20.
TEST(BoundsTest, NestedWindowByHand) {
  const auto rest_with = [](int microbatches) {
    Problem problem =
        uniform(ir::Placement::loop(3, 3), microbatches, {1, 1, 1, 1, 1, 2, 1}, search::kNoLimit);
    problem.stages[1] = {10, 10, 4, 1, 1, 2, 1};
    problem.stages[2] = {10, 10, 0, 1, 1, 2, 1};
    problem.memory_limits[1] = 8;
    const Bound bound = nested_window_bound(problem);
    EXPECT_EQ(bound.rank, 0);
    EXPECT_EQ(bound.other, 1);
    return bound.terms[3];
  };
  // A mixture of u = 3 and u = 4 has 3.2 before I and leaves 4 (8 - 3.2) = 19.2, rounded.
  EXPECT_EQ(rest_with(12), (BoundTerm{"cool_down", -19}));
  // With laps, each u for itself.
  EXPECT_EQ(rest_with(13), (BoundTerm{"cool_down", -18}));
}

// By hand: V schedules whose rank 1 is slower on its first stage. It has memory for two whole
// microbatches (K = 2), so more than six have laps.
TEST(BoundsTest, LapsByHand) {
  Problem problem = uniform(ir::Placement::v(2, 4), 7, {7, 7, 1, 1, 1, 2, 1}, search::kNoLimit);
  problem.stages[1] = {10, 6, 3, 0, 1, 2, 1};
  problem.stages[2] = {4, 2, 1, 1, 0, 2, 1};
  problem.stages[3] = {17, 17, 0, 0, 1, 2, 1};
  problem.memory_limits[1] = 8;
  // The first I of rank 1 comes after 50. With one whole microbatch there is memory for two Fs of
  // 10 beside it: 16 are idle. With two, 50 - 28 = 22. But with one, the next I comes 42 later; by
  // then, after 92, its F, I and W (26) and the four Fs of 10 that fit are over: 26 are idle.
  // After the last F, 44 pass to the end of the last I. With one whole microbatch, and I and W of
  // 9 of two others, 44 - 12 - 18 are idle. With two, 44 - 24 = 20. But with one, its Fs came in
  // the 42 before: 44 + 42 - 26, and 4 * 9 that fit in memory.
  EXPECT_EQ(nested_window_bound(problem).terms,
            (std::vector<BoundTerm>{
                {"head", 8}, {"work", 7 * 26}, {"warm_up", 22}, {"cool_down", 20}, {"tail", 9}}));
  problem.num_microbatches = 6;
  EXPECT_EQ(nested_window_bound(problem).terms,
            (std::vector<BoundTerm>{
                {"head", 8}, {"work", 6 * 26}, {"warm_up", 16}, {"cool_down", 14}, {"tail", 9}}));
  // Compounds have no laps.
  problem.num_microbatches = 7;
  problem.overlap = 0.5;
  EXPECT_EQ(nested_window_bound(problem).terms[3], (BoundTerm{"warm_up", 16}));

  // An I on the first stage comes 66 after that on the last one, and a lap is 38. So two whole
  // microbatches have 2 (14 + 3) in the lap and keep 4 of the memory, which leaves room for two Fs:
  // 50 + 38 - 34 - 20 are idle. (With one: 50 + 38 - 17 - 30.)
  Problem late = uniform(ir::Placement::v(3, 6), 7, {1, 1, 1, 1, 1, 2, 1}, search::kNoLimit);
  late.stages[1] = {10, 6, 3, 1, 1, 2, 1};
  late.stages[2].gradient_transfer = 61;
  late.stages[4] = {4, 2, 1, 1, 1, 2, 1};
  late.stages[5] = {15, 15, 0, 0, 1, 2, 1};
  late.memory_limits[1] = 8;
  EXPECT_EQ(nested_window_bound(late).terms,
            (std::vector<BoundTerm>{
                {"head", 2}, {"work", 7 * 26}, {"warm_up", 34}, {"cool_down", 80}, {"tail", 3}}));
  // Likewise at the end, if F on the last stage comes long after that on the first: then 44 pass to
  // the end of the last I, and 44 + 38 - 2 (4 + 12) - 2 * 9 are idle. (With one: 82 - 16 - 3 * 9.)
  late.stages[2].gradient_transfer = 1;
  late.stages[2].output_transfer = 0;
  late.stages[3].output_transfer = 61;
  EXPECT_EQ(nested_window_bound(late).terms[3], (BoundTerm{"cool_down", 32}));
}

// By hand: 3 ranks, F 10, I 11, transfers 1. A first I that never waits comes 10, 33 and 56 after
// the first F of ranks 2, 1 and 0.
TEST(BoundsTest, FirstBackwardsByHand) {
  const auto with_memory_for = [](Memory limit) {
    return uniform(ir::Placement::loop(3, 3), 10, {10, 11, 5, 1, 1, 1, 1}, limit);
  };
  // Rank 1 idles for 3 after three Fs, or the I waits there for a fourth, comes to rank 0 after 63,
  // and finds it idle after six Fs for 3. Six Fs are all that fit.
  const Bound six = first_backwards_bound(with_memory_for(6));
  EXPECT_EQ(six.value, 10 * 26 + 3);
  EXPECT_EQ(six.terms, (std::vector<BoundTerm>{{"work", 260}, {"warm_up", 3}, {"cool_down", 0}}));
  EXPECT_EQ(warm_up_and_cool_down_bound(with_memory_for(6)).value, 260);
  // A seventh F fills rank 0 until 70.
  EXPECT_EQ(first_backwards_bound(with_memory_for(7)).value, 260);
  // After five Fs, rank 0 idles from 50 to 56.
  EXPECT_EQ(first_backwards_bound(with_memory_for(5)).value, 266);
  // With a V, no rank's first I comes after that of a rank that starts later.
  const Problem v = uniform(ir::Placement::v(3, 6), 10, {10, 11, 5, 1, 1, 1, 1}, 12);
  EXPECT_EQ(first_backwards_bound(v).value, work_bound(v).value);
  // Without equal Fs there is no grid to meet.
  Problem uneven = with_memory_for(6);
  uneven.microbatch_scale.assign(10, 1.0);
  uneven.microbatch_scale[3] = 1.1;
  EXPECT_EQ(first_backwards_bound(uneven).value, work_bound(uneven).value);
}

// Quotients are rounded up: 3 microbatches for 10 each, in memory for 2 that fills while an F runs
// and empties while a W runs.
TEST(BoundsTest, MemoryAreaIsRoundedUp) {
  const Problem problem = uniform(ir::Placement::loop(1, 1), 3, {3, 5, 2, 0, 0, 1, 1}, 2);
  EXPECT_EQ(memory_area_bound(problem).value, (3 * 10 + 3 + 2 + 1) / 2);
}

// By hand: whole microbatches in memory, of which V schedules have two activations per rank.
TEST(BoundsTest, WholeMicrobatchesByHand) {
  // Memory for one microbatch, so rank 1 runs F F I W I W of one after the other, and between its
  // second F and its first I the F and I of rank 0. The Ws of the last microbatch may be left.
  const Problem one = uniform(ir::Placement::v(2, 4), 4, {1, 1, 1, 0, 0, 1, 1}, 2);
  const Bound bound = whole_microbatches_bound(one);
  EXPECT_EQ(bound.rank, 0);
  EXPECT_EQ(bound.other, 1);
  EXPECT_EQ(bound.terms, (std::vector<BoundTerm>{
                             {"head", 1}, {"whole_microbatches", 4 * 8 - 2}, {"tail", 1 + 1}}));
  EXPECT_EQ(lower_bound(one).value, 33);  // the optimum
  // Memory for two: beside an F or I of the outer stage, or a W, there is only one. When the second
  // F of a stage starts, one microbatch at most is past the first F of the inner stage.
  const Problem two = uniform(ir::Placement::v(4, 8), 4, {93, 90, 47, 6, 6, 2, 1}, 8);
  const Ticks life = 4 * (93 + 90) + 6 * 6;
  const Ticks lost = (93 + 90) * ((4 + 1) + 1) + 47 * (2 * 4 - 8);
  EXPECT_EQ(whole_microbatches_bound(two).terms[1],
            (BoundTerm{"whole_microbatches", (4 * life + lost) / 2}));
  // On one rank the window is its own.
  const Bound own =
      whole_microbatches_bound(uniform(ir::Placement::loop(1, 1), 2, {3, 5, 2, 0, 0, 1, 1}, 1));
  EXPECT_EQ(own.rank, 0);
  EXPECT_EQ(own.other, -1);
  EXPECT_EQ(own.terms, (std::vector<BoundTerm>{
                           {"head", 0}, {"whole_microbatches", 3 + 5 + 2 + 3 + 5}, {"tail", 2}}));
  // Memory that holds no microbatch, or more than there are.
  EXPECT_EQ(
      whole_microbatches_bound(uniform(ir::Placement::v(2, 4), 4, {1, 1, 1, 0, 0, 1, 1}, 1)).value,
      0);
  EXPECT_EQ(whole_microbatches_bound(
                uniform(ir::Placement::v(2, 4), 4, {1, 1, 1, 0, 0, 1, 1}, search::kNoLimit)),
            whole_microbatches_bound(uniform(ir::Placement::v(2, 4), 4, {1, 1, 1, 0, 0, 1, 1}, 8)));
}

// The W after the tail may make a later rank the better outer one.
TEST(BoundsTest, TheOuterRankIsTheBestOne) {
  Problem problem = uniform(ir::Placement::loop(3, 3), 4, {1, 1, 1, 0, 0, 1, 1}, 8);
  EXPECT_EQ(nested_window_bound(problem).rank, 0);
  problem.stages[1].backward_weight = 5;
  problem.stages[2].forward = 100;
  const Bound bound = nested_window_bound(problem);
  EXPECT_EQ(bound.rank, 1);
  EXPECT_EQ(bound.other, 2);
  EXPECT_EQ(bound.terms.front(), (BoundTerm{"head", 1}));
  EXPECT_EQ(bound.terms.back(), (BoundTerm{"tail", 1 + 5}));
}

// Paths are those of the fastest microbatch and knapsacks those of the slowest: the first I of rank
// 0 comes 10 + 10 + 1 after its first F, and two Fs of the slowest microbatches take longer.
TEST(BoundsTest, MicrobatchesOfDifferentCosts) {
  Problem problem = uniform(ir::Placement::loop(2, 2), 3, {10, 1, 1, 0, 0, 1, 1}, 2);
  const auto warm_up = [&] { return warm_up_and_cool_down_bound(problem).terms[1]; };
  EXPECT_EQ(warm_up(), (BoundTerm{"warm_up", 1}));
  problem.microbatch_scale = {1, 2, 2};
  EXPECT_EQ(warm_up(), (BoundTerm{"warm_up", 0}));
  EXPECT_EQ(one_microbatch_bound(problem).value, 2 * (10 + 10 + 1 + 1 + 1));
}

TEST(KnapsackTest, MostWork) {
  using Items = std::vector<MemoryItem>;
  EXPECT_EQ(most_work(Items{}, 10), 0);
  EXPECT_EQ(most_work(Items{{2, 5, 100}}, 7), 15);
  EXPECT_EQ(most_work(Items{{2, 5, 2}, {1, 1, 100}}, 7), 13);  // two of the first, three others
  EXPECT_EQ(most_work(Items{{3, 10, 9}, {2, 6, 9}}, 7), 22);   // 3 + 2 + 2, not 3 + 3
  EXPECT_EQ(most_work(Items{{0, 7, 3}, {2, 5, 1}}, 1), 21);    // no memory, no limit
  EXPECT_EQ(most_work(Items{{0, 7, 3}, {2, 5, 1}}, -5), 21);
  EXPECT_EQ(most_work(Items{{3000, 10, 9}, {2000, 6, 9}}, 7000), 22);  // the unit is 1000
  // Too many units for a table: fractions are allowed, rounded up.
  EXPECT_EQ(most_work(Items{{30'001, 10, 9}, {20'000, 6, 9}}, 70'001), 24);
  // Against brute force.
  Random random(3);
  for (int instance = 0; instance < 2000; ++instance) {
    Items items;
    for (int item = 0; item < 3; ++item)
      items.push_back({random.number(0, 5), random.number(0, 9), random.number(0, 4)});
    const Memory capacity = random.number(0, 30);
    Ticks best = 0;
    for (int64_t a = 0; a <= items[0].count; ++a)
      for (int64_t b = 0; b <= items[1].count; ++b)
        for (int64_t c = 0; c <= items[2].count; ++c)
          if (a * items[0].size + b * items[1].size + c * items[2].size <= capacity)
            best = std::max(best, a * items[0].work + b * items[1].work + c * items[2].work);
    EXPECT_EQ(most_work(items, capacity), best);
  }
}

}  // namespace
}  // namespace pipewright::schedule
