#ifndef PIPEWRIGHT_SCHEDULE_SEARCH_SOLVE_H_
#define PIPEWRIGHT_SCHEDULE_SEARCH_SOLVE_H_

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "pipewright/schedule/problem/problem.h"
#include "pipewright/schedule/search/words.h"

// The search for one problem: dispatcher with many templates, then local search, until the cost
// equals the lower bound or the budget is spent. Both make compounds where the problem has an
// overlap.
//
//   SolveOptions options = {.bound = lower_bound(problem).value, .evaluations = 100'000'000};
//   const Solution best = solve(problem, options);
//   std::cout << best.cost << (best.cost == options.bound ? ", optimal" : "");
//
// The result depends only on the problem, the candidates, the bound, the budget and the seed: not
// on the number of threads, and not on the machine. Only a cancelled search depends on time.

namespace pipewright::schedule::search {

// A schedule that is known before the search starts.
struct Candidate {
  std::string name;
  Words words;
};

struct Progress {
  Ticks cost;   // of the best schedule so far
  Ticks bound;  // of SolveOptions
  int64_t evaluations;
  int num_microbatches;
};

struct SolveOptions {
  Ticks bound = 0;                    // stop at this cost; a lower bound
  int64_t evaluations = 100'000'000;  // budget, in evaluated actions: about 30 ns each
  int threads = 1;
  uint64_t seed = 1;
  // Those that deadlock or do not fit are ignored; of several with one cost, all but the one that
  // needs least memory.
  std::vector<Candidate> candidates = {};
  bool memory_plans = true;  // of the first phase of solve_in_phases(): see catalogue()
  // Called from the calling thread whenever a round has ended; may be empty.
  std::function<void(const Progress&)> on_progress = {};
  // Set by another thread or a signal handler to stop early; may be null.
  const std::atomic<bool>* cancel = nullptr;
};

// A schedule that the search came across.
struct Found {
  Ticks cost = 0;
  Words words;
  std::string candidate = {};  // the name of the candidate that it is, or "" if the search found it
};

struct Solution : Found {  // the cheapest
  int64_t evaluations = 0;
  bool is_cancelled = false;
  // Good schedules of different costs, cheapest first, beginning with this one.
  std::vector<Found> alternatives = {};
};

// Keeps the `most` cheapest entries, cheapest first, and only the first of several with one cost.
template <typename Entry>
void keep_best(Entry entry, size_t most, std::vector<Entry>* kept) {
  const auto place = std::ranges::lower_bound(*kept, entry.cost, {}, &Entry::cost);
  if (place != kept->end() && place->cost == entry.cost) return;
  kept->insert(place, std::move(entry));
  if (kept->size() > most) kept->pop_back();
}

// How many Found a search keeps.
inline constexpr size_t kWordsKept = 6;

// How long a rank computes for one microbatch, on average.
Ticks work_per_rank(const Problem& problem);

// The best schedule found, which is never worse than any candidate. Every rank's memory limit must
// be at least its least_memory(). Throws whatever on_progress throws.
Solution solve(const Problem& problem, const SolveOptions& options);

// Like solve(), but in two phases if there are many microbatches. The first phase solves the
// problem with fewer of them, for which a budget goes farther, within a quarter of the budget; its
// progress has the bound and the microbatches of that problem. Its results are repeated (repeat.h),
// and are candidates of the second phase. If it is cancelled, the best of them, repeated, is the
// result.
Solution solve_in_phases(const Problem& problem, const SolveOptions& options);

}  // namespace pipewright::schedule::search

#endif  // PIPEWRIGHT_SCHEDULE_SEARCH_SOLVE_H_
