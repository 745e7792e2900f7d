#include "pipewright/schedule/search/solve_in_phases.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <utility>
#include <vector>

#include "pipewright/schedule/bounds/bounds.h"
#include "pipewright/schedule/problem/cancel.h"
#include "pipewright/schedule/search/catalogue.h"
#include "pipewright/schedule/search/repeat.h"

namespace pipewright::schedule::search {
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
  options.candidates = catalogue(brief, options.cancel);
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
