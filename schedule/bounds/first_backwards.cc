// Whether a cost T has a solution follows from one pass over the ranks, last one first, which takes
// the least late_x that the rank after it and the idle time allow: less never hurts the ranks
// before. A larger T allows more idle time, so bisection finds the smallest T.
#include <algorithm>
#include <functional>
#include <numeric>
#include <optional>
#include <vector>

#include "pipewright/schedule/bounds/bounds.h"
#include "pipewright/schedule/bounds/rank_terms.h"

namespace pipewright::schedule {
namespace {

struct Rank {
  const Problem* problem = nullptr;
  int index = 0, first = 0, last = 0;
  RankTerms terms;
  Ticks unit = 1;  // the F work done at any time is a multiple of this

  // The work, if so much of the F work is done before the first I.
  Ticks work(Ticks alone) const { return terms.work.sum() - terms.work.hidden(*problem, alone); }
  Ticks cool_down() const { return terms.all_fit ? 0 : terms.cool_down; }

  // The least time from the first F to the first I that is at least `time` and leaves no more idle
  // time than the cost allows.
  std::optional<Ticks> warm_up(Ticks time, Ticks cost) const {
    const auto idle = [&](Ticks done) { return cost - work(done) - cool_down(); };
    const Ticks done = std::min(time, terms.fill) / unit * unit;
    if (time - done <= idle(done)) return time;
    const bool fits = done + unit <= terms.fill && idle(done + unit) >= 0;
    return fits ? std::optional(done + unit) : std::nullopt;
  }
};

Ticks unit_of(const Problem& problem, const std::vector<int>& stages) {
  if (!problem.microbatch_scale.empty()) return 1;
  Ticks unit = 0;
  for (const int stage : stages) unit = std::gcd(unit, problem.work(stage).forward);
  return std::max<Ticks>(1, unit);
}

// A rank that cannot keep to the cost, or null. `ranks` are sorted by their first stage, last
// first.
const Rank* find_late(const Chain& fast, const std::vector<Rank>& ranks, Ticks cost) {
  const Rank* after = nullptr;
  Ticks late = 0;  // of the rank after
  for (const Rank& rank : ranks) {
    if (after == nullptr || rank.last > after->last) late = 0;
    const Ticks path = fast.path(rank.first, rank.last);
    const std::optional<Ticks> warm_up = rank.warm_up(path + late, cost);
    if (!warm_up) return &rank;
    late = *warm_up - path;
    after = &rank;
  }
  return nullptr;
}

}  // namespace

Bound first_backwards(const Instance& instance) {
  std::vector<Rank> ranks;
  Ticks least = 0, most = 0;
  for (const std::vector<int>& stages : instance.stages_of) {
    if (stages.empty()) continue;
    Rank rank{.problem = &instance.problem,
              .index = instance.problem.placement.rank_of(stages.front()),
              .first = stages.front(),
              .last = stages.back(),
              .terms = instance.terms_of(stages),
              .unit = unit_of(instance.problem, stages)};
    least = std::max(least, rank.work(0));
    most = std::max(most, rank.terms.work.sum() + rank.cool_down());
    ranks.push_back(rank);
  }
  std::ranges::sort(ranks, std::greater(), &Rank::first);
  most += instance.fast.path(0, 0);  // nobody is late then
  const Rank* late = find_late(instance.fast, ranks, least - 1);
  while (least < most) {
    const Ticks middle = least + (most - least) / 2;
    const Rank* found = find_late(instance.fast, ranks, middle);
    if (found == nullptr) {
      most = middle;
    } else {
      least = middle + 1;
      late = found;
    }
  }
  Bound bound{.value = least, .name = "first_backwards", .rank = late->index};
  bound.terms = work_terms(instance.problem, late->terms.work, late->terms.hidden);
  bound.terms.push_back(
      {"warm_up", least - late->terms.work.sum() + late->terms.hidden - late->cool_down()});
  bound.terms.push_back({"cool_down", late->cool_down()});
  return bound;
}

}  // namespace pipewright::schedule
