#include "pipewright/schedule/search/search.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <stdexcept>
#include <utility>

#include "pipewright/ir/check.h"
#include "pipewright/schedule/problem/problem.h"
#include "pipewright/schedule/search/catalogue.h"
#include "pipewright/schedule/search/recompute.h"
#include "pipewright/schedule/search/replay.h"
#include "pipewright/schedule/search/solve.h"
#include "pipewright/schedule/search/words.h"
#include "pipewright/schedule/simulate/report.h"
#include "pipewright/schedule/simulate/simulate.h"
#include "pipewright/schedule/verify/verify.h"

namespace pipewright::schedule::search {
namespace {

constexpr int kNoisyRuns = 100;
constexpr double kSlowRank = 1.05, kSlowLinks = 2;

double makespan_of(const ir::ComputeOrder& order, const Costs& costs) {
  return report_on(order, costs, simulate(order, costs)).makespan;
}

// nullopt once the request is cancelled.
std::optional<Robustness> robustness_of(const ir::ComputeOrder& order,
                                        const SearchRequest& request) {
  ir::Diagnostics errors;
  PW_CHECK(verify(order, &errors), "what the search finds is valid");
  const int num_stages = order.placement.num_stages();
  const Costs costs = offloading(recomputing(request.costs, order.recompute, num_stages),
                                 order.offload, num_stages);
  const double makespan = std::max(makespan_of(order, costs), kLeastCost);
  const Spread spread = spread_of_makespan(ChannelGraph::of_order(order), order, costs,
                                           request.noise, kNoisyRuns, /*seed=*/1, request.cancel);
  Robustness result = {.mean = spread.mean / makespan - 1,
                       .percentile_95 = spread.percentile_95 / makespan - 1};
  for (int rank = 0; rank < order.placement.num_ranks(); ++rank) {
    if (is_cancelled(request.cancel)) return std::nullopt;
    Costs slow = costs;
    slow_rank(rank, kSlowRank, order.placement, &slow);
    result.slow_rank = std::max(result.slow_rank, makespan_of(order, slow) / makespan - 1);
  }
  Costs slow_links = costs;
  scale_cost("COMM", kSlowLinks, &slow_links);
  result.slow_links = makespan_of(order, slow_links) / makespan - 1;
  return result;
}

// The caller's progress, in units of the costs.
std::function<void(const Progress&)> progress_of(const SearchRequest& request,
                                                 const Problem& problem) {
  if (!request.on_progress) return {};
  return [&request, &problem](const Progress& progress) {
    request.on_progress({problem.time(progress.cost), problem.time(progress.bound),
                         progress.evaluations, progress.num_microbatches});
  };
}

// A problem with split backwards, and the same with whole ones: both have the same ticks.
struct Backwards {
  Problem split, whole;
};

// No stage of what a search finds offloads.
Costs costs_in(const SearchRequest& request) {
  return offloading(request.costs, {}, request.placement.num_stages());
}

Backwards backwards_of(const SearchRequest& request) {
  const auto with = [&](bool splits) {
    return make_problem(request.placement, request.num_microbatches, costs_in(request),
                        request.memory, splits);
  };
  return {with(true), with(false)};
}

// The same where each stage may recompute.
struct RecomputeBackwards {
  RecomputeProblem split, whole;

  Backwards with(std::span<const int> stages) const {
    return {split.with(stages), whole.with(stages)};
  }
};

RecomputeBackwards recompute_of(const SearchRequest& request) {
  const auto with = [&](bool splits) {
    return make_recompute_problem(request.placement, request.num_microbatches, costs_in(request),
                                  request.memory, splits);
  };
  return {with(true), with(false)};
}

// Whether some I leaves more memory in use than F did: a whole B never has that.
bool adds_memory(const Problem& problem) {
  return std::ranges::any_of(
      problem.stages, [](const StageWork& work) { return work.weight_input > work.activation; });
}

}  // namespace

Problem problem_of(const SearchRequest& request) {
  const auto chosen = [&](Backwards backwards) {
    const bool splits =
        request.splits_backward && !(adds_memory(backwards.split) && shortage_of(backwards.split));
    return splits ? std::move(backwards.split) : std::move(backwards.whole);
  };
  if (!request.may_recompute) return chosen(backwards_of(request));
  RecomputeBackwards both = recompute_of(request);
  return chosen({std::move(both.split.recomputing), std::move(both.whole.recomputing)});
}

std::optional<Shortage> shortage_of(const Problem& problem) {
  const std::vector<Memory> least = least_memory(problem);
  std::optional<Shortage> shortage;
  for (int rank = 0; rank < problem.num_ranks(); ++rank) {
    const Memory needed = least[static_cast<size_t>(rank)], limit = problem.memory_limit(rank);
    const Memory most = shortage ? shortage->least - shortage->limit : 0;
    if (needed > limit && needed - limit > most) shortage = Shortage{rank, limit, needed};
  }
  return shortage;
}

namespace {

// `bound` is one for all schedules that the request allows; `known` are schedules to try first.
SearchResult search(const SearchRequest& request, const Problem& problem, const Bound& bound,
                    const std::vector<ir::ComputeOrder>& known) {
  PW_CHECK(!shortage_of(problem), "every rank has the memory that a schedule needs");
  SearchResult result;
  result.problem = problem;
  result.bound = bound;
  SolveOptions options = {.bound = result.bound.value,
                          .evaluations = request.evaluations,
                          .threads = request.threads,
                          .seed = request.seed,
                          .candidates = catalogue(problem, request.cancel, request.memory_plans),
                          .memory_plans = request.memory_plans,
                          .on_progress = progress_of(request, problem),
                          .cancel = request.cancel};
  for (const auto& orders : {&known, &request.known}) {
    for (const ir::ComputeOrder& order : *orders)
      options.candidates.push_back({"search", words_of(problem, order)});
  }
  const Solution solution = solve_in_phases(problem, options);
  Replay replay(problem);
  const auto run = [&](const Words& words) {
    PW_CHECK(replay.run(words), "what the search finds runs");
  };
  const Found* best = &solution.alternatives.front();
  if (request.noise > 0 && !is_cancelled(request.cancel)) {
    // Compared by their makespans under noise, in time rather than relative to their own.
    double least = 0;
    for (const Found& one : solution.alternatives) {
      const std::optional<Robustness> robustness =
          robustness_of(order_of(problem, one.words, "search"), request);
      if (!robustness) break;
      run(one.words);
      const double longer =
          request.robust_by == RobustBy::kMean ? robustness->mean : robustness->percentile_95;
      const double makespan = (1 + longer) * static_cast<double>(replay.makespan());
      if (result.robustness && makespan >= least) continue;
      least = makespan;
      best = &one;
      result.robustness = robustness;
    }
  }
  run(best->words);
  result.order = order_of(problem, best->words, "search");
  result.found_by = best->candidate.empty() ? "search" : best->candidate;
  result.cost_in_ticks = replay.cost();
  result.cost = problem.time(replay.cost());
  result.makespan = problem.time(replay.makespan());
  result.bubble_rate = replay.cost() == 0 ? 0
                                          : static_cast<double>(replay.cost() - replay.busiest()) /
                                                static_cast<double>(replay.cost());
  result.peak_memory = peak_memory(problem, best->words);
  result.evaluations = solution.evaluations;
  result.is_cancelled = is_cancelled(request.cancel);
  return result;
}

// What counts when two results of a request are compared, in the unit of the costs.
double figure_of(const SearchResult& result, const SearchRequest& request) {
  if (!result.robustness) return result.cost;
  const double longer = request.robust_by == RobustBy::kMean ? result.robustness->mean
                                                             : result.robustness->percentile_95;
  return (1 + longer) * result.makespan;
}

// The better of split and whole backwards. `bound` is one for all of their schedules; `known` are
// schedules to try first.
SearchResult search(const SearchRequest& request, const Backwards& backwards, const Bound& bound,
                    const std::vector<ir::ComputeOrder>& known) {
  const bool adds = adds_memory(backwards.split);
  if (!request.splits_backward || (adds && shortage_of(backwards.split)))
    return search(request, backwards.whole, bound, known);
  if (!adds) return search(request, backwards.split, bound, known);
  // Half of the budget for each.
  SearchRequest half = request;
  half.evaluations = (request.evaluations + 1) / 2;
  SearchResult split = search(half, backwards.split, bound, known);
  if (split.gap() == 0 || split.is_cancelled) return split;
  SearchResult whole = search(half, backwards.whole, bound, known);
  SearchResult& best = figure_of(whole, request) < figure_of(split, request) ? whole : split;
  best.evaluations = split.evaluations + whole.evaluations;
  return std::move(best);
}

Bound bound_of(const SearchRequest& request, const Backwards& backwards) {
  return lower_bound(request.splits_backward ? backwards.split : backwards.whole);
}

// The best over the choices of stages that recompute, the one with the least bound first. No stage
// and all stages are searched as if they were the only choice, so the result is never worse. What
// has been found is a schedule to try for the other choices, which it may fit.
SearchResult search_choices(const SearchRequest& request) {
  const RecomputeBackwards both = recompute_of(request);
  const RecomputeChoices choices =
      recompute_choices(request.splits_backward ? both.split : both.whole, both.whole);
  PW_CHECK(!choices.promising.empty(), "every rank has the memory that a schedule needs");
  const auto stages = static_cast<size_t>(request.placement.num_stages());
  const auto is_mixed = [&](const RecomputeChoice& one) {
    return !one.stages.empty() && one.stages.size() < stages;
  };
  const int64_t mixed = std::ranges::count_if(choices.promising, is_mixed);
  std::optional<SearchResult> best;
  std::vector<ir::ComputeOrder> known;
  int64_t evaluations = 0;
  for (const RecomputeChoice& choice : choices.promising) {
    if (best && (best->is_cancelled || choice.bound.value >= best->cost_in_ticks)) continue;
    SearchRequest one = request;
    if (is_mixed(choice)) one.evaluations = std::max<int64_t>(1, request.evaluations / mixed);
    SearchResult result = search(one, both.with(choice.stages), choice.bound,
                                 is_mixed(choice) ? known : std::vector<ir::ComputeOrder>());
    evaluations += result.evaluations;
    known.push_back(result.order);
    if (!best || figure_of(result, request) < figure_of(*best, request)) best = std::move(result);
  }
  best->bound = choices.bound;
  best->evaluations = evaluations;
  return std::move(*best);
}

}  // namespace

SearchResult search_schedule(const SearchRequest& request) {
  if (request.may_recompute) return search_choices(request);
  const Backwards backwards = backwards_of(request);
  return search(request, backwards, bound_of(request, backwards), {});
}

}  // namespace pipewright::schedule::search
