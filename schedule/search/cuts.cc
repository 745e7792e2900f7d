// A few cuts to begin with, then a climb: from the best cut so far, move a layer from one stage to
// another (all stages between shift by a layer), or two or three if that does not help. Of these
// neighbours, those for which the best order so far costs least are probed, until none is better: a
// probe is a search with a small part of the budget and without the plans of V-Adaptive, which take
// most of the time on many ranks. It starts from the best orders of other cuts. Then the best cut
// gets a whole search, and so do the two cuts that the result must not be worse than, unless their
// bounds say that they cannot be better.
#include "pipewright/schedule/search/cuts.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <set>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "pipewright/ir/check.h"
#include "pipewright/schedule/bounds/bounds.h"
#include "pipewright/schedule/search/cut_bound.h"
#include "pipewright/schedule/search/replay.h"
#include "pipewright/schedule/search/words.h"

namespace pipewright::schedule::search {
namespace {

constexpr int kProbePart = 64;         // the budget of a probe is that part of all
constexpr int kMostProbes = 64;        // so the climb takes the budget once at most
constexpr size_t kProbesPerStep = 16;  // of the neighbours with the least bounds
constexpr size_t kMostNeighbours = 2'000;
constexpr size_t kMostKnown = 4;  // orders that a probe starts from

class CutSearch {
 public:
  explicit CutSearch(const SearchRequest& request) : request_(request), probe_(request) {
    probe_.evaluations = std::max<int64_t>(1, request.evaluations / kProbePart);
    probe_.noise = 0;
    probe_.memory_plans = false;
    if (request.on_progress) {
      request_.on_progress = probe_.on_progress = [this](SearchProgress progress) {
        if (best_) progress.cost = std::min(progress.cost, best_->result.cost);
        progress.bound = bound_.value;
        progress.evaluations += evaluations_;
        on_progress_(progress);
      };
      on_progress_ = request.on_progress;
    }
  }

  std::optional<CutResult> run() {
    const std::vector<Cut> known = {
        even_cut(num_layers(request_.costs), request_.placement.num_stages()),
        least_maximum_cut(request_.costs, request_.placement)};
    for (const Cut& cut : known) probe(fitting(cut));
    if (!best_) return std::nullopt;
    bound_ = cut_bound(request_, best_->result.cost);
    if (bound_.cut) probe(*bound_.cut);
    climb();
    if (!is_optimal()) {
      // One of the two is searched as if it were the only cut.
      if (std::ranges::find(known, best_->cut) == known.end()) request_.known = probe_.known;
      search(best_->cut);
      request_.known.clear();
    }
    for (const Cut& cut : known) {
      if (!is_optimal() && bound_of(problem_of_cut(cut)) < best_->result.cost) search(cut);
    }
    finish();
    return std::move(best_);
  }

 private:
  bool is_done() const { return is_optimal() || is_cancelled(request_.cancel); }
  bool is_optimal() const {
    return best_ && is_same(bound_.value, best_->result.cost) && request_.noise == 0;
  }

  Problem problem_of_cut(const Cut& cut) const { return problem_of(with_cut(request_, cut)); }
  // What no schedule of a cut is below; of no choice of stages that recompute.
  double bound_of(const Problem& problem) const {
    if (request_.may_recompute) return 0;
    return shortage_of(problem) ? best_->result.cost : problem.time(lower_bound(problem).value);
  }
  // What the best order costs with the cut of this problem, whether its memory fits or not.
  double estimate_of(const Problem& problem) const {
    Replay replay(problem);
    PW_CHECK(replay.run(words_of(problem, best_->result.order)), "an order runs at any times");
    return problem.time(replay.cost());
  }

  // The cut, or one that is near and fits the memory: layers move from the rank that is the
  // shortest of memory to the next stages on either side, as long as that helps.
  Cut fitting(Cut cut) const {
    const auto missing = [&](const Cut& one) {
      const Problem problem = problem_of_cut(one);
      const auto shortage = shortage_of(problem);
      return shortage ? std::pair(static_cast<double>(shortage->least - shortage->limit) *
                                      problem.memory_unit,
                                  shortage->rank)
                      : std::pair(0.0, -1);
    };
    auto [least, rank] = missing(cut);
    for (int step = 0; least > 0 && step < num_layers(request_.costs); ++step) {
      Cut best = cut;
      double now = least;
      int short_rank = rank;
      for (const int from : request_.placement.stages_of(rank)) {
        for (int to = 0; to < request_.placement.num_stages(); ++to) {
          Cut moved = cut;
          if (from == to || moved[static_cast<size_t>(from)] == 0) continue;
          --moved[static_cast<size_t>(from)];
          ++moved[static_cast<size_t>(to)];
          const auto [lacks, at] = missing(moved);
          if (lacks < now) std::tie(best, now, short_rank) = std::tuple(moved, lacks, at);
        }
      }
      if (now >= least) break;
      cut = std::move(best);
      least = now;
      rank = short_rank;
    }
    return cut;
  }

  void probe(const Cut& cut) {
    if (!probed_.insert(cut).second || (best_ && is_done())) return;
    take(probe_, cut);
  }
  void search(const Cut& cut) {
    if (is_cancelled(request_.cancel) || !searched_.insert(cut).second) return;
    take(request_, cut);
  }
  void take(const SearchRequest& request, const Cut& cut) {
    const SearchRequest one = with_cut(request, cut);
    if (shortage_of(problem_of(one))) return;
    SearchResult result = search_schedule(one);
    evaluations_ += result.evaluations;
    // With noise, a result of the whole budget has been chosen by its robustness.
    const bool is_chosen = result.robustness && !(best_ && best_->result.robustness);
    if (best_ && result.cost >= best_->result.cost && !is_chosen) return;
    probe_.known.insert(probe_.known.begin(), result.order);
    if (probe_.known.size() > kMostKnown) probe_.known.pop_back();
    best_ = CutResult{cut, std::move(result)};
  }

  // Moves one layer at a time, and more where one does not help.
  void climb() {
    const int most = request_.placement.num_stages() <= 4 ? 3 : 2;
    int left = kMostProbes;
    for (int moves = 1; moves <= most && left > 0 && !is_done();) {
      const double before = best_->result.cost;
      for (const Cut& cut : neighbours(moves)) {
        if (left-- <= 0 || is_done()) break;
        probe(cut);
        if (best_->result.cost < before) break;
      }
      moves = best_->result.cost < before ? 1 : moves + 1;
    }
  }

  // Those so many moves away with the least estimates, if their bounds are below the cost of the
  // best schedule. Near stages first, as far as there are too many.
  std::vector<Cut> neighbours(int moves) const {
    const int stages = request_.placement.num_stages();
    std::set<Cut> seen = {best_->cut};
    std::vector<Cut> reached = {best_->cut};
    for (size_t from = 0; moves > 0; --moves) {
      for (const size_t end = reached.size(); from < end; ++from) {
        for (int distance = 1; distance < stages && reached.size() < kMostNeighbours; ++distance) {
          for (int stage = 0; stage + distance < stages; ++stage) {
            for (const bool forwards : {true, false}) {
              Cut cut = reached[from];
              const auto less = static_cast<size_t>(forwards ? stage : stage + distance);
              const auto more = static_cast<size_t>(forwards ? stage + distance : stage);
              if (cut[less] == 0) continue;
              --cut[less];
              ++cut[more];
              if (seen.insert(cut).second) reached.push_back(std::move(cut));
            }
          }
        }
      }
    }
    std::vector<std::pair<double, Cut>> all;
    for (const Cut& cut : reached) {
      if (probed_.contains(cut)) continue;
      const Problem problem = problem_of_cut(cut);
      if (bound_of(problem) < best_->result.cost) all.emplace_back(estimate_of(problem), cut);
    }
    std::ranges::stable_sort(all, {}, &std::pair<double, Cut>::first);
    std::vector<Cut> cuts;
    for (const auto& [_, cut] : all) {
      if (cuts.size() < kProbesPerStep) cuts.push_back(cut);
    }
    return cuts;
  }

  // The bound for all cuts, in the ticks of the problem that was solved.
  void finish() {
    SearchResult& result = best_->result;
    result.order.cut = best_->cut;
    result.evaluations = evaluations_;
    result.is_cancelled = is_cancelled(request_.cancel);
    Ticks ticks =
        is_same(bound_.value, result.cost)
            ? result.cost_in_ticks
            : static_cast<Ticks>(std::floor(bound_.value / result.problem.tick * (1 + 1e-12)));
    ticks = std::min(ticks, result.cost_in_ticks);
    // bound_.name is one of the names of bounds.h; a Bound refers to it.
    const auto bounds = lower_bounds(result.problem);
    const auto named = std::ranges::find(bounds, bound_.name, &Bound::name);
    result.bound = {.value = ticks,
                    .name = named == bounds.end() ? std::string_view("work") : named->name,
                    .rank = bound_.rank,
                    .terms = {{"least_of_all_cuts", ticks}}};
  }
  static bool is_same(double bound, double cost) { return cost <= bound * (1 + 2e-9); }

  SearchRequest request_, probe_;
  std::function<void(const SearchProgress&)> on_progress_;
  std::optional<CutResult> best_;
  CutBound bound_;
  std::set<Cut> probed_, searched_;
  int64_t evaluations_ = 0;
};

}  // namespace

SearchRequest with_cut(const SearchRequest& request, const Cut& cut) {
  SearchRequest one = request;
  one.costs = cut_layers(request.costs, cut);
  return one;
}

std::optional<CutResult> search_cuts(const SearchRequest& request) {
  PW_CHECK(num_layers(request.costs) >= request.placement.num_stages(), "every stage has a layer");
  return CutSearch(request).run();
}

std::vector<FrontPoint> search_cut_front(const SearchRequest& request,
                                         const std::vector<PlacementOption>& options) {
  auto searches = front_searches(request, options);
  std::erase_if(searches, [](const auto& search) {
    return num_layers(search.second.costs) < search.second.placement.num_stages();
  });
  std::vector<FrontPoint> points;
  for (auto& [point, one] : searches) {
    one.evaluations =
        std::max<int64_t>(1, request.evaluations / static_cast<int64_t>(searches.size()));
    if (auto found = search_cuts(one)) {
      point.result = std::move(found->result);
      points.push_back(std::move(point));
    }
    if (is_cancelled(request.cancel) && !points.empty()) break;
  }
  mark_best(&points);
  return points;
}

}  // namespace pipewright::schedule::search
