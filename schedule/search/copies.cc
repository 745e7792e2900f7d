#include "pipewright/schedule/search/copies.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>

#include "pipewright/schedule/bounds/schedule_bound.h"
#include "pipewright/schedule/search/random.h"
#include "pipewright/schedule/search/replay.h"
#include "pipewright/schedule/simulate/memory_model.h"
#include "pipewright/schedule/simulate/simulate.h"

namespace pipewright::schedule::search {
namespace {

constexpr int kMostOnTheWay = 2;  // parts that are copied out and back while other actions run
// A simulation takes as long as replays of so many times its actions.
constexpr int64_t kActionsPerSimulated = 6;
// Annealing: the first temperature is the work of a microbatch on a rank, divided by this. It falls
// to 0.
constexpr int kCooling = 100;
constexpr int kRestarts = 12;

// By the simulator, of words that run to their end; without Measured::busiest.
Measured simulated(const Problem& problem, const Costs& costs, const Words& words) {
  const ir::ComputeOrder order = order_of(problem, words, "search");
  const ir::Timeline timeline = simulate(order, costs);
  const CopyPlan copies(order, costs);
  const auto ticks = [&](double time) { return std::llround(time / problem.tick); };
  Measured result;
  for (size_t rank = 0; rank < order.rows.size(); ++rank) {
    const double end = timeline.at(rank, order.rows[rank].size() - 1).end;
    result.cost = std::max<Ticks>(result.cost, ticks(end - timeline.at(rank, 0).start));
    result.makespan = std::max<Ticks>(result.makespan, ticks(end));
  }
  for (const MemoryPeak& peak : memory_peaks(order, problem, &copies, &timeline)) {
    result.peaks.push_back(peak.amount);
    result.excess += peak.excess;
  }
  return result;
}

class CopySolver {
 public:
  CopySolver(const Problem& problem, const Costs& costs, const SolveOptions& options)
      : problem_(problem),
        costs_(costs),
        options_(options),
        replay_(problem),
        random_(options.seed) {
    Memory largest = 1;
    for (const StageWork& one : problem.stages) largest = std::max(largest, one.offloaded);
    // An excess of the largest part weighs as much as the work of a microbatch.
    const auto work = static_cast<double>(work_per_rank(problem));
    weight_ = work / static_cast<double>(largest);
    hottest_ = work / kCooling;
  }

  std::optional<Solution> solve() {
    for (const Candidate& candidate : options_.candidates) add(candidate.words, candidate.name);
    add(one_at_a_time(problem_), "one microbatch at a time");
    for (int on_the_way = 0; on_the_way <= kMostOnTheWay && !is_over(); ++on_the_way)
      explore(on_the_way);
    for (int k = kRestarts; k > 0 && !is_over(); --k) {
      // In turn from what fits and from the best that does not.
      const auto start = static_cast<size_t>(k / 2 % kWordsKept);
      const bool is_fitting = k % 2 == 0 ? !found_.empty() : promising_.words.empty();
      const Found* found = is_fitting ? &found_[std::min(start, found_.size() - 1)] : nullptr;
      anneal(is_fitting ? State{static_cast<double>(found->cost), found->words} : promising_,
             evaluations_ + (options_.evaluations - evaluations_) / k);
    }
    if (found_.empty()) return std::nullopt;
    return Solution{found_.front(), evaluations_, is_cancelled(options_.cancel), found_};
  }

 private:
  // Words and their cost, which is more by what excess memory weighs.
  struct State {
    double energy = std::numeric_limits<double>::infinity();
    Words words = {};
  };

  bool is_over() const {
    return (!found_.empty() && found_.front().cost <= options_.bound) ||
           evaluations_ >= options_.evaluations || is_cancelled(options_.cancel);
  }

  // Measures words, and keeps them if they fit and are among the best. nullopt for a deadlock, or
  // for words that cost more than `most` even without copies.
  std::optional<State> add(const Words& words, const std::string& name,
                           double most = std::numeric_limits<double>::infinity()) {
    int64_t actions = 0;
    for (const Word& word : words) actions += static_cast<int64_t>(word.size());
    evaluations_ += actions;
    if (!replay_.run(words) || static_cast<double>(replay_.cost()) > most) return std::nullopt;
    evaluations_ += kActionsPerSimulated * actions;
    const Measured measured = simulated(problem_, costs_, words);
    State state{static_cast<double>(measured.cost) + weight_ * static_cast<double>(measured.excess),
                words};
    if (measured.excess == 0) {
      keep_best(Found{measured.cost, words, name}, kWordsKept, &found_);
    } else if (state.energy < promising_.energy) {
      promising_ = state;
    }
    return state;
  }

  // Solves the problem without copies, with room for so many parts that are on their way.
  void explore(int on_the_way) {
    Problem without = problem_;
    for (int rank = 0; rank < problem_.num_ranks(); ++rank) {
      Memory largest = 0;
      for (const int stage : problem_.placement.stages_of(rank))
        largest = std::max(largest, problem_.work(stage).offloaded);
      Memory& limit = without.memory_limits[static_cast<size_t>(rank)];
      if (limit != kNoLimit) limit -= on_the_way * largest;
    }
    if (!std::ranges::equal(least_memory(without), without.memory_limits, std::less_equal<>()))
      return;
    SolveOptions options = options_;
    options.evaluations = std::max<int64_t>(1, options_.evaluations / (2 * (kMostOnTheWay + 1)));
    options.on_progress = {};
    const Solution solution = solve_in_phases(without, options);
    evaluations_ += solution.evaluations;
    for (const Found& one : solution.alternatives) add(one.words, one.candidate);
    if (options_.on_progress && !found_.empty())
      options_.on_progress(
          {found_.front().cost, options_.bound, evaluations_, problem_.num_microbatches});
  }

  // From a state until so many evaluations have been spent.
  void anneal(State current, int64_t until) {
    const int64_t from = evaluations_, budget = std::max<int64_t>(1, until - from);
    while (evaluations_ < until && !is_over()) {
      ++evaluations_;
      const double left =
          1 - static_cast<double>(evaluations_ - from) / static_cast<double>(budget);
      const auto quantile = static_cast<double>(exponential_quantile(random_.below(1024)));
      const double most = current.energy + hottest_ * std::max(0.0, left) * quantile / 1024;
      Words words = current.words;
      if (!move(&words)) continue;
      std::optional<State> next = add(words, "", most);
      if (next && next->energy <= most) current = std::move(*next);
    }
  }

  // Moves a step of a rank past some others. False if nothing changes.
  bool move(Words* words) {
    Word& word = (*words)[random_.index(words->size())];
    std::vector<size_t> begins;  // of steps
    for (size_t at = 0; at < word.size(); at += step_size(&word[at])) begins.push_back(at);
    begins.push_back(word.size());
    const int steps = static_cast<int>(begins.size()) - 1;
    if (steps < 2) return false;
    const int farthest = random_.one_in(4) ? steps - 1 : std::min(3, steps - 1);
    const int first = random_.below(steps - 1);
    const int last = std::min(steps - 1, first + random_.between(1, farthest));
    const auto at = [&](int step) {
      return word.begin() + static_cast<std::ptrdiff_t>(begins[static_cast<size_t>(step)]);
    };
    const Word before = word;
    if (random_.one_in(2)) {
      std::rotate(at(first), at(first + 1), at(last + 1));
    } else {
      std::rotate(at(first), at(last), at(last + 1));
    }
    return word != before;
  }

  const Problem& problem_;
  const Costs& costs_;
  const SolveOptions& options_;
  Replay replay_;
  Random random_;
  std::vector<Found> found_;  // that fit, cheapest first
  State promising_;           // the best that does not fit
  double weight_ = 0;         // of a unit of excess memory, in ticks
  double hottest_ = 0;        // temperature
  int64_t evaluations_ = 0;
};

}  // namespace

std::optional<Measured> measure(const Problem& problem, const Words& words) {
  Replay replay(problem);
  if (!replay.run(words)) return std::nullopt;
  return Measured{replay.cost(), replay.makespan(), replay.busiest(), peak_memory(problem, words),
                  0};
}

std::optional<Measured> measure(const Problem& problem, const Costs& costs, const Words& words) {
  Replay replay(problem);
  if (!replay.run(words)) return std::nullopt;
  Measured result = simulated(problem, costs, words);
  result.busiest = replay.busiest();
  return result;
}

std::optional<Solution> solve_with_copies(const Problem& problem, const Costs& costs,
                                          const SolveOptions& options) {
  return CopySolver(problem, costs, options).solve();
}

}  // namespace pipewright::schedule::search
