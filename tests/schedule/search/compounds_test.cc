// Compounds: what they cost, bounds for them, and the search for them. The judges are a simulation
// that is written out here and the optima of small problems, found by trying every order.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "pipewright/schedule/bounds/bounds.h"
#include "pipewright/schedule/compile/compile.h"
#include "pipewright/schedule/search/catalogue.h"
#include "pipewright/schedule/search/dispatcher.h"
#include "pipewright/schedule/search/repeat.h"
#include "pipewright/schedule/search/replay.h"
#include "pipewright/schedule/search/search.h"
#include "pipewright/schedule/search/solve.h"
#include "pipewright/schedule/search/templates.h"
#include "pipewright/schedule/search/words.h"
#include "pipewright/schedules/registry.h"
#include "tests/schedule/search/random_problem.h"

namespace pipewright::schedule::search {
namespace {

#ifdef PIPEWRIGHT_WHOLE_BOX
constexpr int kExactInstances = 2'000, kRandomInstances = 20'000;
#else
constexpr int kExactInstances = 40, kRandomInstances = 300;
#endif

// ---- schedules and their cost, written out here

enum Kind { kF, kI, kW, kB };

// An action of one microbatch.
struct Part {
  Kind kind;
  int stage, microbatch;
};
using Parts = std::vector<Part>;  // one, or the F and the backward of a compound
using Rows = std::vector<std::vector<Parts>>;

double time_of(const Problem& problem, const Part& part) {
  const StageWork& work = problem.work(part.stage);
  const std::array<Ticks, 4> times = {work.forward, work.backward_input, work.backward_weight, 0};
  const auto scaled = [&](Kind kind) {
    return static_cast<double>(problem.scaled(times[kind], part.microbatch));
  };
  return part.kind == kB ? scaled(kI) + scaled(kW) : scaled(part.kind);
}

// The longest span of any rank when everything runs as soon as it can; nullopt for a deadlock.
std::optional<double> cost_of(const Problem& problem, const Rows& rows) {
  constexpr double kNever = -1;
  const auto stages = static_cast<size_t>(problem.num_stages());
  const auto microbatches = static_cast<size_t>(problem.num_microbatches);
  std::vector<double> ends(3 * stages * microbatches, kNever);
  const auto end_of = [&](Kind kind, int stage, int microbatch) -> double& {
    return ends[(static_cast<size_t>(kind) * stages + static_cast<size_t>(stage)) * microbatches +
                static_cast<size_t>(microbatch)];
  };
  // When the part may start, or kNever if that is not known yet.
  const auto ready = [&](const Part& part) {
    const int last = problem.num_stages() - 1;
    double from = 0, delay = 0;
    if (part.kind == kW) {
      from = end_of(kI, part.stage, part.microbatch);
    } else if (part.kind == kF) {
      if (part.stage == 0) return 0.0;
      from = end_of(kF, part.stage - 1, part.microbatch);
      delay = static_cast<double>(problem.work(part.stage - 1).output_transfer);
    } else if (part.stage == last) {
      from = end_of(kF, last, part.microbatch);
    } else {
      from = end_of(kI, part.stage + 1, part.microbatch);
      delay = static_cast<double>(problem.work(part.stage + 1).gradient_transfer);
    }
    return from == kNever ? kNever : from + delay;
  };
  std::vector<size_t> next(rows.size());
  std::vector<double> time(rows.size()), start(rows.size(), kNever);
  for (bool progress = true; progress;) {
    progress = false;
    for (size_t rank = 0; rank < rows.size(); ++rank) {
      while (next[rank] < rows[rank].size()) {
        const Parts& parts = rows[rank][next[rank]];
        double begin = time[rank], total = 0, least = time_of(problem, parts[0]);
        bool is_ready = true;
        for (const Part& part : parts) {
          is_ready = is_ready && ready(part) != kNever;
          begin = std::max(begin, ready(part));
          total += time_of(problem, part);
          least = std::min(least, time_of(problem, part));
        }
        if (!is_ready) break;
        if (parts.size() == 2) total -= problem.overlap * least;
        if (start[rank] == kNever) start[rank] = begin;
        time[rank] = begin + total;
        for (const Part& part : parts) {
          end_of(part.kind == kB ? kI : part.kind, part.stage, part.microbatch) = time[rank];
          if (part.kind == kB) end_of(kW, part.stage, part.microbatch) = time[rank];
        }
        ++next[rank];
        progress = true;
      }
    }
  }
  double cost = 0;
  for (size_t rank = 0; rank < rows.size(); ++rank) {
    if (next[rank] < rows[rank].size()) return std::nullopt;
    cost = std::max(cost, time[rank] - start[rank]);
  }
  return cost;
}

// What the rank has in use while `parts` run and after it, beside what it had before.
std::pair<Memory, Memory> memory_of(const Problem& problem, const Parts& parts) {
  Memory during = 0, after = 0;
  for (const Part& part : parts) {  // F first
    const StageWork& work = problem.work(part.stage);
    if (part.kind == kF) after += work.activation;
    const Memory before = after;
    if (part.kind == kI) after += work.weight_input - work.activation;
    if (part.kind == kW) after -= work.weight_input;
    if (part.kind == kB) after -= work.activation;
    during = std::max({during, after, before});
    if (part.kind == kI || part.kind == kB) during = std::max(during, before + work.recomputed);
  }
  return {during, after};
}

Memory peak_of(const Problem& problem, const std::vector<Parts>& row) {
  Memory used = 0, peak = 0;
  for (const Parts& parts : row) {
    const auto [during, after] = memory_of(problem, parts);
    peak = std::max(peak, used + during);
    used += after;
  }
  return peak;
}

bool fits(const Problem& problem, int rank, const std::vector<Parts>& row) {
  return peak_of(problem, row) <= problem.memory_limit(rank);
}

Rows rows_of(const ir::Schedule& order) {
  Rows rows;
  for (const ir::Row& from : order.rows) {
    std::vector<Parts>& row = rows.emplace_back();
    for (const ir::Action& action : from) {
      if (action.is_idle()) continue;
      Parts& parts = row.emplace_back();
      for (const ir::ActionPart part : action.parts()) {
        const Kind kind = part.kind() == ir::ActionKind::kForward         ? kF
                          : part.kind() == ir::ActionKind::kBackwardInput ? kI
                          : part.kind() == ir::ActionKind::kBackward      ? kB
                                                                          : kW;
        parts.push_back({kind, part.stage(), part.microbatch()});
      }
      std::ranges::sort(parts, {}, &Part::kind);
    }
  }
  return rows;
}

// ---- every order of a small problem

// All rows of a rank that keep to the order of each microbatch on it and fit in memory.
class AllRows {
 public:
  AllRows(const Problem& problem, int rank)
      : problem_(problem),
        rank_(rank),
        stages_(problem.placement.stages_of(rank)),
        done_(static_cast<size_t>(problem.num_stages())) {
    extend();
  }

  std::vector<std::vector<Parts>> rows;

 private:
  // The next action of this kind, if it may come now.
  std::optional<Part> next(Kind kind, int stage) {
    const std::array<int, 3>& done = done_[static_cast<size_t>(stage)];
    const int count = done[kind == kB ? kI : kind];
    if (count == problem_.num_microbatches) return std::nullopt;
    if (kind == kB && done[kI] != done[kW]) return std::nullopt;
    if (kind == kW && count == done[kI]) return std::nullopt;
    if ((kind == kI || kind == kB) && count == done[kF]) return std::nullopt;
    return Part{kind, stage, count};
  }
  void add(const Part& part, int by) {
    std::array<int, 3>& done = done_[static_cast<size_t>(part.stage)];
    done[part.kind == kB ? kI : part.kind] += by;
    if (part.kind == kB) done[kW] += by;
  }
  void append(const Parts& parts) {
    const auto [during, after] = memory_of(problem_, parts);
    if (used_ + during > problem_.memory_limit(rank_)) return;
    for (const Part& part : parts) add(part, 1);
    used_ += after;
    row_.push_back(parts);
    extend();
    row_.pop_back();
    used_ -= after;
    for (const Part& part : parts) add(part, -1);
  }
  void extend() {
    bool is_complete = true;
    for (const int stage : stages_) {
      for (const Kind kind : {kF, kI, kW}) {
        if (kind == kW && !problem_.splits_backward) continue;
        const std::optional<Part> part = next(kind, stage);
        is_complete =
            is_complete && done_[static_cast<size_t>(stage)][kind] == problem_.num_microbatches;
        if (part) append({*part});
      }
      const std::optional<Part> forward = next(kF, stage);
      if (!forward) continue;
      for (const int other : stages_) {
        for (const Kind kind : {kI, kB}) {
          if (kind == kB && !problem_.splits_backward) continue;
          const std::optional<Part> backward = next(kind, other);
          if (backward && backward->microbatch != forward->microbatch)
            append({*forward, *backward});
        }
      }
    }
    if (is_complete) rows.push_back(row_);
  }

  const Problem& problem_;
  const int rank_;
  const std::vector<int> stages_;
  std::vector<std::array<int, 3>> done_;  // by stage: how many F, I, W
  std::vector<Parts> row_;
  Memory used_ = 0;
};

std::optional<double> optimum_of(const Problem& problem) {
  std::vector<std::vector<std::vector<Parts>>> rows;
  for (int rank = 0; rank < problem.num_ranks(); ++rank)
    rows.push_back(AllRows(problem, rank).rows);
  std::optional<double> best;
  Rows chosen(rows.size());
  const auto choose = [&](const auto& self, size_t rank) -> void {
    if (rank == rows.size()) {
      if (const auto cost = cost_of(problem, chosen); cost && (!best || *cost < *best)) best = cost;
      return;
    }
    for (const std::vector<Parts>& row : rows[rank]) {
      chosen[rank] = row;
      self(self, rank + 1);
    }
  };
  choose(choose, 0);
  return best;
}

// A problem in which every overlap is a whole number of ticks.
Problem with_overlap(Problem problem, std::mt19937* random) {
  problem.overlap = 0.25 * static_cast<double>(1 + (*random)() % 4);
  for (StageWork& work : problem.stages) {
    for (Ticks* time : {&work.forward, &work.backward_input, &work.backward_weight,
                        &work.output_transfer, &work.gradient_transfer})
      *time *= 4;
  }
  problem.microbatch_scale.clear();
  return problem;
}

void expect_sound(const Problem& problem, double cost) {
  for (const Bound& bound : lower_bounds(problem)) {
    EXPECT_LE(static_cast<double>(bound.value), cost)
        << bound.name << " of ranks " << bound.rank << ", " << bound.other << ", "
        << problem.placement.to_string() << ", overlap " << problem.overlap;
    Ticks sum = 0;
    for (const BoundTerm& term : bound.terms) sum += term.value;
    EXPECT_EQ(sum, bound.value) << bound.name;
  }
}

// Two stages on one rank or on two, which split their backwards.
Problem split_problem(int instance, std::mt19937* random) {
  Problem problem = with_overlap(tests::random_problem(random), random);
  const bool is_v = instance % 4 == 0;
  problem.placement = is_v ? ir::Placement::v(1, 2) : ir::Placement::loop(2, 2);
  problem.num_microbatches = instance % 8 == 1 ? 3 : 2;
  problem.splits_backward = true;
  problem.stages.resize(2, problem.stages[0]);
  if (is_v) {
    for (StageWork& work : problem.stages) work.output_transfer = work.gradient_transfer = 0;
  }
  problem.memory_limits = least_memory(problem);
  for (Memory& limit : problem.memory_limits)
    limit += static_cast<Memory>((*random)() % (problem.num_microbatches == 3 ? 4 : 7));
  return problem;
}

// Two ranks with whole backwards and memory for all of their four microbatches: where the gradients
// meet forwards in progress (theorem 5 of docs/bounds.md).
Problem whole_problem(std::mt19937* random) {
  const auto time = [&](int least, int most) {
    return Ticks{4} * (least + static_cast<int>((*random)() % static_cast<unsigned>(most - least)));
  };
  const StageWork work = {.forward = time(2, 8),
                          .backward_input = time(2, 12),
                          .output_transfer = time(0, 4),
                          .gradient_transfer = time(0, 4),
                          .activation = 1};
  Problem problem = {.placement = ir::Placement::loop(2, 2),
                     .num_microbatches = 4,
                     .stages = {work, work},
                     .memory_limits = {4, 4},
                     .splits_backward = false};
  problem.overlap = 0.25 * static_cast<double>(1 + (*random)() % 4);
  return problem;
}

// F comes first in a compound, whichever of the two ran first; those of one microbatch stay alone.
TEST(Compounds, AreJoinedFromNeighbours) {
  const Problem problem = make_problem(ir::Placement::loop(1, 1), 2, Costs(), MemoryBudget());
  const Letter f = letter(0, Pass::kForward), i = letter(0, Pass::kInput),
               w = letter(0, Pass::kWeight);
  EXPECT_EQ(joined(problem, {{f, i, f, w, i, w}}), (Words{{f, f | kTogether, i, w, i, w}}));
  EXPECT_EQ(joined(problem, {{f, f, i, w, i, w}}), (Words{{f, f | kTogether, i, w, i, w}}));
}

TEST(Compounds, BoundsAndSearchAgreeWithEveryOrderOfSmallProblems) {
  std::mt19937 random(1);
  int solved = 0, found = 0, met = 0, pays = 0;
  for (int instance = 0; instance < kExactInstances; ++instance) {
    const Problem problem =
        instance % 8 == 2 ? whole_problem(&random) : split_problem(instance, &random);
    const std::optional<double> optimum = optimum_of(problem);
    ASSERT_TRUE(optimum);
    ++solved;
    expect_sound(problem, *optimum);
    met += static_cast<double>(lower_bound(problem).value) == *optimum;
    const Solution solution =
        solve(problem, {.bound = lower_bound(problem).value, .evaluations = 400'000});
    EXPECT_GE(static_cast<double>(solution.cost), *optimum);
    found += static_cast<double>(solution.cost) == *optimum;
    pays += has_compound(solution.words);
  }
  EXPECT_GE(found, solved * 95 / 100) << "small problems are rarely solved";
  EXPECT_GT(met, solved / 4) << "the bounds say little";
  EXPECT_GT(pays, solved / 3) << "compounds rarely pay";
}

TEST(Compounds, SearchMeansWhatItsOrdersCost) {
  std::mt19937 random(2);
  int compounds = 0;
  for (int instance = 0; instance < kRandomInstances; ++instance) {
    const Problem problem = with_overlap(tests::random_problem(&random), &random);
    const Solution solution =
        solve(problem, {.bound = lower_bound(problem).value, .evaluations = 40'000});
    for (const Found& one : solution.alternatives) {
      const ir::ComputeOrder order = order_of(problem, one.words, "search");
      const Rows rows = rows_of(order);
      const std::vector<Memory> peaks = peak_memory(problem, one.words);
      for (size_t rank = 0; rank < rows.size(); ++rank) {
        EXPECT_TRUE(fits(problem, static_cast<int>(rank), rows[rank]));
        EXPECT_EQ(peaks[rank], peak_of(problem, rows[rank]));
      }
      EXPECT_EQ(cost_of(problem, rows), static_cast<double>(one.cost));
      EXPECT_TRUE(compile({.source = ir::AnySchedule(order),
                           .level = ir::Level::kComputeOnly,
                           .depth = Depth::kVerify})
                      .ok());
      EXPECT_EQ(words_of(problem, order), one.words);
      compounds += has_compound(one.words);
    }
    expect_sound(problem, static_cast<double>(solution.cost));
  }
  EXPECT_GT(compounds, kRandomInstances / 2);
}

// A schedule with compounds, repeated for more microbatches.
TEST(Compounds, AreRepeated) {
  SearchRequest request = {.placement = ir::Placement::v(4, 8), .num_microbatches = 16};
  request.costs.overlap = 0.5;
  const Problem brief = problem_of(request);
  request.num_microbatches = 40;
  const Problem longer = problem_of(request);
  int repeated = 0;
  for (const Found& one : solve(brief, {.evaluations = 1'000'000}).alternatives) {
    const std::optional<Words> words = repeat(brief, one.words, longer, 10'000'000);
    if (!words || !has_compound(*words)) continue;
    ++repeated;
    Replay replay(longer);
    ASSERT_TRUE(replay.run(*words));
    EXPECT_EQ(cost_of(longer, rows_of(order_of(longer, *words, ""))),
              static_cast<double>(replay.cost()));
    EXPECT_EQ(peak_memory(longer, *words), peak_memory(brief, one.words));
  }
  EXPECT_GT(repeated, 0);
}

// With little memory and much to hide, better than the catalogue.
TEST(Compounds, DispatcherMakesSchedulesForCompounds) {
  SearchRequest request = {
      .placement = ir::Placement::v(8, 16), .num_microbatches = 32, .memory = {.activations = 5}};
  request.costs.overlap = 1;
  const Problem problem = problem_of(request);
  std::optional<double> best, named;
  Dispatcher dispatcher(problem);
  for (const Template& numbers : known_templates(problem)) {
    if (numbers.partner_patience == Template::kNever) continue;
    const std::optional<Ticks> planned = dispatcher.run(numbers, WakeQueue::kAsleep);
    if (!planned) continue;
    const Rows rows = rows_of(order_of(problem, dispatcher.words(), "dispatched"));
    const std::optional<double> cost = cost_of(problem, rows);
    ASSERT_TRUE(cost);
    EXPECT_LE(*cost, static_cast<double>(*planned));
    for (int rank = 0; rank < 8; ++rank)
      EXPECT_TRUE(fits(problem, rank, rows[static_cast<size_t>(rank)]));
    EXPECT_TRUE(has_compound(dispatcher.words()));
    best = std::min(best.value_or(*cost), *cost);
  }
  for (const Candidate& one : catalogue(problem)) {
    if (!fits_memory(problem, one.words)) continue;
    const auto cost = cost_of(problem, rows_of(order_of(problem, one.words, one.name)));
    ASSERT_TRUE(cost) << one.name;
    named = std::min(named.value_or(*cost), *cost);
  }
  ASSERT_TRUE(best && named);
  EXPECT_LT(*best, *named);
}

// A catalogue's order that has compounds, simulated as above.
TEST(Compounds, SimulationHidesPartOfTheShorterAction) {
  const schedules::ScheduleSpec* spec = schedules::find_schedule("DualPipeV");
  ASSERT_NE(spec, nullptr);
  for (const double overlap : {0.0, 0.25, 0.5, 1.0}) {
    for (const int ranks : {2, 4, 5}) {
      Costs costs = {.forward = 4,
                     .backward_input = 8,
                     .backward_weight = 4,
                     .overlap = overlap,
                     .link = {.latency = 2}};
      const schedules::Shape shape = {
          .ranks = ranks, .stages = 2 * ranks, .microbatches = 3 * ranks};
      const ir::ComputeOrder order = schedules::make_order(*spec, shape, {});
      const Problem problem =
          make_problem(order.placement, order.num_microbatches, costs, MemoryBudget());
      const std::optional<double> cost = cost_of(problem, rows_of(order));
      ASSERT_TRUE(cost);
      const CompileResult compiled = compile({.source = ir::AnySchedule(order),
                                              .level = ir::Level::kComputeOnly,
                                              .depth = Depth::kVerify});
      const SimulateResult result = simulate(compiled, {.costs = costs});
      ASSERT_TRUE(result.simulation);
      EXPECT_DOUBLE_EQ(result.simulation->report.cost, *cost * problem.tick);
      EXPECT_LE(result.simulation->bound->value, result.simulation->report.cost);
      EXPECT_GE(result.simulation->report.bubble_rate, 0);
    }
  }
}

// Never worse than DualPipeV, which has compounds, or than a schedule without any.
TEST(Compounds, SearchIsNeverWorseThanTheCatalogue) {
  for (const double overlap : {0.0, 0.5, 1.0}) {
    for (const int64_t evaluations : {1, 2'000'000}) {
      SearchRequest request = {.placement = ir::Placement::v(4, 8), .num_microbatches = 12};
      request.costs.overlap = overlap;
      request.evaluations = evaluations;
      const SearchResult result = search_schedule(request);
      for (const char* name : {"DualPipeV", "ZBVZeroBubble", "V-Half"}) {
        const ir::ComputeOrder order = schedules::make_order(
            *schedules::find_schedule(name), {.ranks = 4, .stages = 8, .microbatches = 12}, {});
        const std::optional<double> cost = cost_of(result.problem, rows_of(order));
        ASSERT_TRUE(cost) << name;
        EXPECT_LE(static_cast<double>(result.cost_in_ticks), *cost) << name << ", " << overlap;
      }
      EXPECT_EQ(cost_of(result.problem, rows_of(result.order)),
                static_cast<double>(result.cost_in_ticks));
      EXPECT_GE(result.cost_in_ticks, result.bound.value);
    }
  }
}

}  // namespace
}  // namespace pipewright::schedule::search
