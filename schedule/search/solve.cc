// The search goes in rounds. In a round, each of a fixed number of lanes works on its own with its
// own seed, from what the round began with: it tries templates, or anneals words. After the round
// their finds are merged in the order of the lanes. Threads only decide which lane runs when, so
// the result does not depend on them. When a lane reaches the bound, lanes after it no longer
// matter and are skipped or ignored; that keeps even this independent of threads.
#include "pipewright/schedule/search/solve.h"

#include <algorithm>
#include <exception>
#include <iterator>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "pipewright/ir/check.h"
#include "pipewright/schedule/bounds/bounds.h"
#include "pipewright/schedule/problem/problem.h"
#include "pipewright/schedule/search/catalogue.h"
#include "pipewright/schedule/search/dispatcher.h"
#include "pipewright/schedule/search/local_search.h"
#include "pipewright/schedule/search/repeat.h"
#include "pipewright/schedule/search/replay.h"
#include "pipewright/schedule/search/templates.h"

namespace pipewright::schedule::search {
namespace {

constexpr int kLanes = 8;
constexpr size_t kTemplatesKept = 8;
// With annealing, few rounds and lanes, and most of the budget for it: one long annealing finds
// more than several short ones, and templates that are tried later rarely beat words that were
// annealed. The second round starts at the best words of all lanes.
constexpr int kTemplateRounds = 10, kAnnealingRounds = 2;
constexpr int kPercentForAnnealing = 75;
// What the work per microbatch is divided by for the temperature of a lane. Warm and cold lanes:
// neither alone is the best on all problems of bench/search_table.
constexpr int kCoolings[] = {75, 1'000, 20'000};
constexpr int kAnnealingLanes = static_cast<int>(std::size(kCoolings));
// Larger problems are left to the dispatcher: a local search would not get far.
constexpr size_t kMostActionsForLocalSearch = 60'000;

struct ScoredTemplate {
  Ticks cost;
  Template numbers;
};

struct Pool {
  std::vector<ScoredTemplate> templates;
  std::vector<Found> words;

  Ticks best() const { return words.front().cost; }
  // Templates that cost more are of no use.
  Ticks worst_template() const {
    return templates.size() < kTemplatesKept ? WakeQueue::kAsleep : templates.back().cost;
  }
};

// What one lane has found in a round.
struct Finds {
  std::vector<ScoredTemplate> templates;
  std::vector<Found> words;
  int64_t evaluations = 0;
  bool reached_bound = false;
};

class Lane {
 public:
  Lane(const Problem& problem, const SolveOptions& options)
      : problem_(problem), options_(options), dispatcher_(problem), replay_(problem) {}

  // Tries given templates.
  Finds try_templates(const std::vector<Template>& templates, int64_t budget, const Pool& pool) {
    begin(pool);
    for (const Template& numbers : templates) {
      if (is_over(budget)) break;
      try_template(numbers);
    }
    return std::move(finds_);
  }

  // Tries random templates, and variations of the best ones.
  Finds explore(uint64_t seed, int64_t budget, const Pool& pool) {
    begin(pool);
    Random random(seed);
    while (!is_over(budget)) {
      const std::vector<ScoredTemplate>& best = pool_.templates;
      try_template(best.size() < kTemplatesKept || random.one_in(3)
                       ? random_template(problem_, &random)
                       : mutated(problem_, best[random.index(best.size())].numbers, &random));
    }
    return std::move(finds_);
  }

  // Anneals one of the best words.
  Finds refine(uint64_t seed, int64_t budget, const Words& words, double temperature,
               const Pool& pool) {
    begin(pool);
    LocalSearch search(problem_, seed);
    search.start(words);
    search.anneal({.evaluations = budget,
                   .temperature = temperature,
                   .bound = options_.bound,
                   .cancel = options_.cancel});
    finds_.evaluations = search.evaluations();
    found(search.best_cost(), search.best());
    return std::move(finds_);
  }

 private:
  void begin(const Pool& pool) {
    pool_.templates = pool.templates;
    worst_words_ = pool.words.size() < kWordsKept ? WakeQueue::kAsleep : pool.words.back().cost;
    finds_ = {};
  }

  bool is_over(int64_t budget) const {
    return finds_.evaluations >= budget || finds_.reached_bound || is_cancelled(options_.cancel);
  }

  void try_template(const Template& numbers) {
    const std::optional<Ticks> cost = dispatcher_.run(numbers, pool_.worst_template());
    finds_.evaluations += static_cast<int64_t>(dispatcher_.actions()) + 1;
    if (!cost) return;
    keep_best(ScoredTemplate{*cost, numbers}, kTemplatesKept, &pool_.templates);
    finds_.templates = pool_.templates;
    // A replay may start actions for which the dispatcher waited.
    if (*cost >= worst_words_ && *cost > options_.bound) return;
    PW_CHECK(replay_.run(dispatcher_.words()), "the dispatcher's words run to their end");
    finds_.evaluations += static_cast<int64_t>(dispatcher_.actions());
    found(replay_.cost(), dispatcher_.words());
  }

  void found(Ticks cost, const Words& words) {
    keep_best(Found{cost, words}, kWordsKept, &finds_.words);
    if (finds_.words.size() == kWordsKept)
      worst_words_ = std::min(worst_words_, finds_.words.back().cost);
    finds_.reached_bound = finds_.words.front().cost <= options_.bound;
  }

  const Problem& problem_;
  const SolveOptions& options_;
  Dispatcher dispatcher_;
  Replay replay_;
  Pool pool_;
  Ticks worst_words_ = 0;
  Finds finds_;
};

class Solver {
 public:
  Solver(const Problem& problem, const SolveOptions& options)
      : problem_(problem), options_(options), lanes_(kLanes) {
    const auto least = std::ranges::min_element(problem.microbatch_scale);
    const int fastest = static_cast<int>(least - problem.microbatch_scale.begin());
    for (const StageWork& work : problem.stages)
      has_free_pass_ = has_free_pass_ || problem.scaled(work.forward, fastest) == 0 ||
                       problem.scaled(work.backward_input, fastest) == 0;
  }

  Solution run();

 private:
  void add_candidates();
  bool is_over() const {
    return pool_.best() <= options_.bound || evaluations_ >= options_.evaluations ||
           is_cancelled(options_.cancel);
  }
  // Runs work(lane, index) for so many lanes and merges what they find.
  template <typename Work>
  void round(int lanes, const Work& work);
  void explore(int64_t budget);
  void refine(int64_t budget);

  const Problem& problem_;
  const SolveOptions& options_;
  std::vector<std::unique_ptr<Lane>> lanes_;
  Pool pool_;
  int64_t evaluations_ = 0;
  uint64_t rounds_ = 0;
  bool has_free_pass_ = false;  // some F or I takes no time
};

void Solver::add_candidates() {
  Replay replay(problem_);
  const auto add = [&](const Words& words, const std::string& name) {
    if (!fits_memory(problem_, words) || !replay.run(words)) return;
    keep_best(Found{replay.cost(), words, name}, kWordsKept, &pool_.words);
  };
  // Of candidates with one cost the pool keeps the first.
  std::vector<std::pair<Memory, const Candidate*>> by_memory;
  for (const Candidate& candidate : options_.candidates)
    by_memory.emplace_back(std::ranges::max(peak_memory(problem_, candidate.words)), &candidate);
  std::ranges::stable_sort(by_memory, {}, &std::pair<Memory, const Candidate*>::first);
  for (const auto& [_, candidate] : by_memory) {
    if (is_cancelled(options_.cancel) && !pool_.words.empty()) break;
    add(candidate->words, candidate->name);
    if (problem_.overlap > 0) add(joined(problem_, candidate->words), "");
  }
  add(one_at_a_time(problem_), "one microbatch at a time");
  PW_CHECK(!pool_.words.empty(), "the memory limits are at least least_memory()");
}

template <typename Work>
void Solver::round(int lanes, const Work& work) {
  std::vector<Finds> finds(static_cast<size_t>(lanes));
  std::vector<std::exception_ptr> errors(static_cast<size_t>(lanes));
  std::atomic<int> next = 0, first_done = lanes;
  const auto run_lanes = [&] {
    for (int index = next++; index < lanes; index = next++) {
      if (index > first_done) continue;
      std::unique_ptr<Lane>& lane = lanes_[static_cast<size_t>(index)];
      Finds& result = finds[static_cast<size_t>(index)];
      try {
        if (lane == nullptr) lane = std::make_unique<Lane>(problem_, options_);
        result = work(*lane, index);
      } catch (...) {
        errors[static_cast<size_t>(index)] = std::current_exception();
      }
      if (!result.reached_bound) continue;
      for (int done = first_done; index < done && !first_done.compare_exchange_weak(done, index);) {
      }
    }
  };
  std::vector<std::thread> threads;
  for (int thread = 1; thread < std::min(options_.threads, lanes); ++thread)
    threads.emplace_back(run_lanes);
  run_lanes();
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& error : errors) {
    if (error != nullptr) std::rethrow_exception(error);
  }

  for (int index = 0; index <= std::min<int>(first_done, lanes - 1); ++index) {
    Finds& result = finds[static_cast<size_t>(index)];
    evaluations_ += result.evaluations;
    for (ScoredTemplate& one : result.templates)
      keep_best(std::move(one), kTemplatesKept, &pool_.templates);
    for (Found& one : result.words) keep_best(std::move(one), kWordsKept, &pool_.words);
  }
  ++rounds_;
  if (options_.on_progress) {
    options_.on_progress({pool_.best(), options_.bound, evaluations_, problem_.num_microbatches});
  }
}

void Solver::explore(int64_t budget) {
  round(kLanes, [&](Lane& lane, int index) {
    const uint64_t seed =
        Random(options_.seed + 1000 * rounds_ + static_cast<uint64_t>(index)).next();
    return lane.explore(seed, budget / kLanes, pool_);
  });
}

void Solver::refine(int64_t budget) {
  // Not from the bound: a search that stops there goes the same way until it does.
  const Ticks per_microbatch = work_per_rank(problem_);
  round(kAnnealingLanes, [&](Lane& lane, int index) {
    const uint64_t seed =
        Random(options_.seed + 1000 * rounds_ + static_cast<uint64_t>(index)).next();
    // Each from other words.
    const auto start = std::min(static_cast<size_t>(index), pool_.words.size() - 1);
    return lane.refine(seed, budget / kAnnealingLanes, pool_.words[start].words,
                       static_cast<double>(per_microbatch) / kCoolings[index], pool_);
  });
}

Solution Solver::run() {
  add_candidates();
  size_t actions = 0;
  for (const Word& word : pool_.words.front().words) actions += word.size();
  const bool refines = actions <= kMostActionsForLocalSearch && !has_free_pass_;
  if (!is_over()) {
    const std::vector<Template> known = known_templates(problem_);
    round(kLanes, [&](Lane& lane, int index) {
      std::vector<Template> own;
      for (size_t k = static_cast<size_t>(index); k < known.size(); k += kLanes)
        own.push_back(known[k]);
      return lane.try_templates(own, options_.evaluations / (2 * kLanes), pool_);
    });
  }
  const int rounds = refines ? kAnnealingRounds : kTemplateRounds;
  for (int k = 0; k < rounds && !is_over(); ++k) {
    const int64_t left = (options_.evaluations - evaluations_) / (rounds - k);
    const int64_t annealing = refines ? left * kPercentForAnnealing / 100 : 0;
    explore(left - annealing);
    if (annealing > 0 && !is_over()) refine(annealing);
  }
  return {pool_.words.front(), evaluations_, is_cancelled(options_.cancel), std::move(pool_.words)};
}

}  // namespace

Ticks work_per_rank(const Problem& problem) {
  Ticks work = 0;
  for (const StageWork& one : problem.stages)
    work += one.forward + one.backward_input + one.backward_weight;
  return work / problem.num_ranks();
}

Solution solve(const Problem& problem, const SolveOptions& options) {
  return Solver(problem, options).run();
}

namespace {

// Whether annealing gets far with the microbatches as they are. It is better not begun at a
// repetition then, unless that is all but optimal.
bool anneals_well(const Problem& problem) {
  return problem.num_microbatches / problem.num_ranks() <= kFewPerRank;
}

// In evaluated actions: some tenths of a second.
constexpr int64_t kMoment = 10'000'000;

// What a search with fewer microbatches finds, repeated; only the best of it once the search is
// cancelled. Nothing for few microbatches, or if nothing can be repeated.
std::vector<Candidate> by_repetition(const Problem& problem, SolveOptions options,
                                     int64_t* evaluations) {
  Problem brief = problem;
  brief.num_microbatches = brief_microbatches(problem);
  if (brief.num_microbatches == problem.num_microbatches) return {};
  options.bound = lower_bound(brief).value;
  options.candidates = catalogue(brief, options.cancel, options.memory_plans);
  const Solution solution = solve(brief, options);
  *evaluations = solution.evaluations;
  const bool will_anneal = anneals_well(problem) && !is_cancelled(options.cancel);
  if (will_anneal && solution.cost > options.bound + options.bound / 1000) return {};
  std::vector<Candidate> candidates;
  for (const Found& found : solution.alternatives) {
    const bool is_last = is_cancelled(options.cancel);
    const int64_t effort = is_last ? std::min(kMoment, options.evaluations) : options.evaluations;
    if (auto words = repeat(brief, found.words, problem, effort))
      candidates.push_back({"search", std::move(*words)});
    if (is_last) break;
  }
  return candidates;
}

}  // namespace

Solution solve_in_phases(const Problem& problem, const SolveOptions& options) {
  SolveOptions first = options, second = options;
  first.evaluations = std::max<int64_t>(1, options.evaluations / (anneals_well(problem) ? 8 : 4));
  int64_t evaluations = 0;
  std::vector<Candidate> repeated = by_repetition(problem, std::move(first), &evaluations);
  // A cancelled solve() takes one candidate without comparing.
  if (is_cancelled(options.cancel) && !repeated.empty()) second.candidates.clear();
  std::ranges::move(repeated, std::back_inserter(second.candidates));
  second.evaluations = std::max<int64_t>(1, options.evaluations - evaluations);
  Solution solution = solve(problem, second);
  solution.evaluations += evaluations;
  return solution;
}

}  // namespace pipewright::schedule::search
