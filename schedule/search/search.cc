#include "pipewright/schedule/search/search.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "pipewright/ir/check.h"
#include "pipewright/schedule/problem/problem.h"
#include "pipewright/schedule/search/catalogue.h"
#include "pipewright/schedule/search/copies.h"
#include "pipewright/schedule/search/saving.h"
#include "pipewright/schedule/search/solve.h"
#include "pipewright/schedule/search/words.h"
#include "pipewright/schedule/simulate/report.h"
#include "pipewright/schedule/simulate/simulate.h"
#include "pipewright/schedule/verify/verify.h"

namespace pipewright::schedule::search {
namespace {

constexpr int kNoisyRuns = 100;
constexpr double kSlowRank = 1.05, kSlowLinks = 2;
// Schedules that need so much more memory than there is may fit if some stages offload.
constexpr double kMoreMemory[] = {1.15, 1.3, 1.5, 1.75, 2, 3};

double makespan_of(const ir::ComputeOrder& order, const Costs& costs) {
  return report_on(order, costs, simulate(order, costs)).makespan;
}

// nullopt once the request is cancelled.
std::optional<Robustness> robustness_of(const ir::ComputeOrder& order,
                                        const SearchRequest& request) {
  ir::Diagnostics errors;
  PW_CHECK(verify(order, &errors), "what the search finds is valid");
  const int num_stages = order.placement.num_stages();
  const Costs costs = costs_with({order.recompute, order.offload}, request.costs, num_stages);
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

AllowedSaving allowed_in(const SearchRequest& request) {
  return {request.may_recompute, request.may_offload};
}

// Those in which no stage offloads, unless some may.
Costs costs_in(const SearchRequest& request) {
  if (request.may_offload) return request.costs;
  return offloading(request.costs, {}, request.placement.num_stages());
}

// The same where each stage may recompute or offload.
struct SavingBackwards {
  SavingProblem split, whole;

  Backwards with(const Saving& saving) const { return {split.with(saving), whole.with(saving)}; }
};

SavingBackwards saving_of(const SearchRequest& request) {
  const auto with = [&](bool splits) {
    return make_saving_problem(request.placement, request.num_microbatches, costs_in(request),
                               request.memory, splits);
  };
  return {with(true), with(false)};
}

Backwards backwards_of(const SearchRequest& request) {
  const auto with = [&](bool splits) {
    return make_problem(request.placement, request.num_microbatches, costs_in(request),
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
  const AllowedSaving allowed = allowed_in(request);
  if (!allowed.recompute && !allowed.offload) return chosen(backwards_of(request));
  const SavingBackwards both = saving_of(request);
  return chosen({undecided(both.split, allowed), undecided(both.whole, allowed)});
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

// Those of the order, in the ticks of the result's problem.
void set_figures(const Measured& figures, SearchResult* result) {
  const Problem& problem = result->problem;
  result->cost_in_ticks = figures.cost;
  result->cost = problem.time(figures.cost);
  result->makespan = problem.time(figures.makespan);
  result->bubble_rate = figures.cost == 0 ? 0
                                          : static_cast<double>(figures.cost - figures.busiest) /
                                                static_cast<double>(figures.cost);
  result->peak_memory = figures.peaks;
}

// `bound` is one for all schedules that the request allows; `known` are schedules to try first.
// nullopt if stages offload and nothing that was found fits.
std::optional<SearchResult> search(const SearchRequest& request, const Problem& problem,
                                   const Bound& bound, const std::vector<ir::ComputeOrder>& known) {
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
  const Costs costs = costs_with(problem.saving, request.costs, problem.num_stages());
  const bool has_copies = !problem.saving.offload.empty();
  const std::optional<Solution> solution =
      has_copies ? solve_with_copies(problem, costs, options) : solve_in_phases(problem, options);
  if (!solution) return std::nullopt;
  const auto measured = [&](const Words& words) {
    const auto figures = has_copies ? measure(problem, costs, words) : measure(problem, words);
    PW_CHECK(figures, "what the search finds runs");
    return *figures;
  };
  const Found* best = &solution->alternatives.front();
  if (request.noise > 0 && !is_cancelled(request.cancel)) {
    // Compared by their makespans under noise, in time rather than relative to their own.
    double least = 0;
    for (const Found& one : solution->alternatives) {
      const std::optional<Robustness> robustness =
          robustness_of(order_of(problem, one.words, "search"), request);
      if (!robustness) break;
      const double longer =
          request.robust_by == RobustBy::kMean ? robustness->mean : robustness->percentile_95;
      const double makespan = (1 + longer) * static_cast<double>(measured(one.words).makespan);
      if (result.robustness && makespan >= least) continue;
      least = makespan;
      best = &one;
      result.robustness = robustness;
    }
  }
  const Measured figures = measured(best->words);
  result.order = order_of(problem, best->words, "search");
  result.found_by = best->candidate.empty() ? "search" : best->candidate;
  set_figures(figures, &result);
  result.evaluations = solution->evaluations;
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

// The better of two results of a request.
std::optional<SearchResult> better(std::optional<SearchResult> one,
                                   std::optional<SearchResult> other,
                                   const SearchRequest& request) {
  if (!one || !other) return one ? std::move(one) : std::move(other);
  return figure_of(*other, request) < figure_of(*one, request) ? std::move(other) : std::move(one);
}

// The better of split and whole backwards. `bound` is one for all of their schedules; `known` are
// schedules to try first.
std::optional<SearchResult> search(const SearchRequest& request, const Backwards& backwards,
                                   const Bound& bound, const std::vector<ir::ComputeOrder>& known) {
  const bool adds = adds_memory(backwards.split);
  if (!request.splits_backward || (adds && shortage_of(backwards.split)))
    return search(request, backwards.whole, bound, known);
  if (!adds) return search(request, backwards.split, bound, known);
  // Half of the budget for each.
  SearchRequest half = request;
  half.evaluations = (request.evaluations + 1) / 2;
  std::optional<SearchResult> split = search(half, backwards.split, bound, known);
  if (split && (split->gap() == 0 || split->is_cancelled)) return split;
  std::optional<SearchResult> whole = search(half, backwards.whole, bound, known);
  const int64_t evaluations = (split ? split->evaluations : 0) + (whole ? whole->evaluations : 0);
  std::optional<SearchResult> best = better(std::move(split), std::move(whole), request);
  if (best) best->evaluations = evaluations;
  return best;
}

Bound bound_of(const SearchRequest& request, const Backwards& backwards) {
  return lower_bound(request.splits_backward ? backwards.split : backwards.whole);
}

// What the choices of stages that were searched so far have given.
struct Findings {
  std::optional<SearchResult> best;
  std::vector<ir::ComputeOrder> orders;  // of each choice: to be tried for others, which it may fit
  std::vector<Saving> tried;
  int64_t evaluations = 0;

  void add(const Saving& saving, std::optional<SearchResult> result, const SearchRequest& request) {
    tried.push_back(saving);
    if (!result) return;
    evaluations += result->evaluations;
    orders.push_back(result->order);
    best = better(std::move(best), std::move(result), request);
  }
};

// Searches for the choices of stages that recompute or offload, the one with the least bound first.
// No stage, and all stages that can in one way, are searched as if they were the only choice, so
// what is found is never worse than for those. Returns the bound of all choices; 0 if none fits.
Bound search_choices(const SearchRequest& request, const SavingBackwards& both,
                     AllowedSaving allowed, Findings* findings) {
  SavingChoices choices =
      saving_choices(request.splits_backward ? both.split : both.whole, both.whole, allowed);
  const auto is_mixed = [&](const SavingChoice& one) {
    const auto can_offload = std::ranges::count_if(
        both.split.offloading.stages, [](const StageWork& work) { return work.offloaded > 0; });
    const auto recompute = std::ssize(one.saving.recompute);
    const auto offload = std::ssize(one.saving.offload);
    if (recompute > 0 && offload > 0) return true;
    return (recompute > 0 && recompute < request.placement.num_stages()) ||
           (offload > 0 && offload < can_offload);
  };
  std::erase_if(choices.promising, [&](const SavingChoice& one) {
    return std::ranges::find(findings->tried, one.saving) != findings->tried.end();
  });
  const int64_t mixed = std::ranges::count_if(choices.promising, is_mixed);
  for (const SavingChoice& choice : choices.promising) {
    const std::optional<SearchResult>& best = findings->best;
    if (best && (best->is_cancelled || choice.bound.value >= best->cost_in_ticks)) continue;
    SearchRequest one = request;
    if (is_mixed(choice)) {
      one.evaluations = std::max<int64_t>(1, request.evaluations / mixed);
      one.memory_plans = false;
    }
    findings->add(choice.saving,
                  search(one, both.with(choice.saving), choice.bound,
                         is_mixed(choice) || allowed.offload ? findings->orders
                                                             : std::vector<ir::ComputeOrder>()),
                  request);
  }
  return choices.bound;
}

}  // namespace

SearchResult search_schedule(const SearchRequest& request) {
  const AllowedSaving allowed = allowed_in(request);
  if (request.placement.num_replicas() > 1) {
    PW_CHECK(2 * request.placement.instances().second_from == request.num_microbatches,
             "both replicas run as many microbatches");
    PW_CHECK(!allowed.recompute && !allowed.offload, "saving is chosen for one replica");
  }
  if (!allowed.recompute && !allowed.offload) {
    const Backwards backwards = backwards_of(request);
    return *search(request, backwards, bound_of(request, backwards), {});
  }
  PW_CHECK(!shortage_of(problem_of(request)), "every rank has the memory that a schedule needs");
  const SavingBackwards both = saving_of(request);
  Findings findings;
  if (allowed.offload) {
    // The same search without offload first, so that the result is never worse.
    SearchRequest without = request;
    without.may_offload = false;
    if (!shortage_of(problem_of(without))) {
      SearchResult result = search_schedule(without);
      const Saving saving = result.problem.saving;
      const Backwards backwards = both.with(saving);
      result.problem = result.problem.splits_backward ? backwards.split : backwards.whole;
      set_figures(*measure(result.problem, words_of(result.problem, result.order)), &result);
      findings.add(saving, std::move(result), request);
      findings.tried.emplace_back();
    }
    for (const double factor : kMoreMemory) {
      if (!request.memory.is_set() || (findings.best && findings.best->is_cancelled)) break;
      SearchRequest more = without;
      more.may_recompute = false;
      more.noise = 0;
      more.memory_plans = false;
      more.on_progress = {};
      more.memory = scaled(request.memory, factor);
      more.evaluations =
          std::max<int64_t>(1, request.evaluations / static_cast<int64_t>(std::size(kMoreMemory)));
      if (shortage_of(problem_of(more))) continue;
      SearchResult result = search_schedule(more);
      findings.evaluations += result.evaluations;
      findings.orders.push_back(std::move(result.order));
    }
    if (allowed.recompute && !(findings.best && findings.best->is_cancelled))
      search_choices(request, both, {.offload = true}, &findings);
  }
  const Bound bound = search_choices(request, both, allowed, &findings);
  if (!findings.best) throw NothingFits("no schedule was found that fits the memory");
  findings.best->bound = bound;
  findings.best->evaluations = findings.evaluations;
  return std::move(*findings.best);
}

}  // namespace pipewright::schedule::search
