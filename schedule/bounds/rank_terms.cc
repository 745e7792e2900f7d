#include "pipewright/schedule/bounds/rank_terms.h"

#include <algorithm>
#include <cstddef>
#include <functional>
#include <utility>

#include "pipewright/schedule/bounds/knapsack.h"
#include "pipewright/schedule/bounds/laps.h"
#include "pipewright/schedule/bounds/rank_memory.h"
#include "pipewright/schedule/bounds/rest.h"

namespace pipewright::schedule {
namespace {

// The microbatch whose times come first.
template <typename Before>
int extreme(const Problem& problem, Before before) {
  const std::vector<double>& scale = problem.microbatch_scale;
  if (scale.empty()) return 0;
  return static_cast<int>(std::ranges::min_element(scale, before) - scale.begin());
}

// The largest value of a concave function of a whole number from 0 to `last`, which is at least 1,
// and where it is first.
template <typename Function>
std::pair<Ticks, Ticks> maximum(Ticks last, Function function) {
  Ticks first = 0;
  // Mostly it is at an end.
  if (function(last) > function(last - 1)) {
    first = last;
  } else if (function(1) <= function(0)) {
    last = 0;
  }
  while (first < last) {
    const Ticks middle = first + (last - first) / 2;
    if (function(middle + 1) > function(middle)) {
      first = middle + 1;
    } else {
      last = middle;
    }
  }
  return {function(first), first};
}

RankTerms make_terms(const Problem& problem, const Chain& fast, const Chain& slow,
                     const std::vector<int>& stages) {
  const int first = stages.front(), last = stages.back();
  const RankMemory memory(problem, slow, stages);
  const Memory beside_one = memory.limit - memory.whole;
  const Ticks path = fast.path(first, last), chain = fast.chain(last, first);
  RankTerms terms;
  terms.limit = memory.limit;
  terms.all_fit = memory.all_fit;
  terms.work = work_of(problem, stages);
  terms.fill = memory.all_fit ? memory.forwards * memory.microbatches
                              : std::min(most_work(memory.single_forwards, memory.limit),
                                         memory.forwards + most_work(memory.started, beside_one));
  terms.hidden = terms.work.hidden(problem, std::min(terms.fill, path));
  const auto scaled_rest = [&](Ticks share) {
    return RestAtShare(memory.unfinished, beside_one, share)
        .scaled(chain, memory.inputs, memory.weights, beside_one);
  };
  const auto [rest, share] = maximum(kWholeShare, scaled_rest);
  terms.warm_up = std::max<Ticks>(0, path - terms.fill);
  const Ticks deferred = most_work(memory.held, memory.limit);
  terms.rest = memory.all_fit ? -deferred : std::max(-deferred, unscaled(rest));
  terms.cool_down = unscaled(scaled_rest(kWholeShare));
  if (problem.overlap == 0) {
    if (const auto idle = lap_idle(fast, slow, stages, memory, share)) {
      terms.warm_up = std::max(terms.warm_up, idle->warm_up);
      terms.rest = std::max(terms.rest, idle->rest);
      terms.cool_down = std::max(terms.cool_down, idle->cool_down);
    }
  }
  terms.cool_down = std::max<Ticks>(0, terms.cool_down + fast.backward_weight(first));
  return terms;
}

}  // namespace

Instance::Instance(const Problem& of)
    : problem(of),
      fast(of, extreme(of, std::less())),
      slow(of, extreme(of, std::greater())),
      stages_of(static_cast<size_t>(of.num_ranks())) {
  for (int stage = 0; stage < of.num_stages(); ++stage)
    stages_of[static_cast<size_t>(of.placement.rank_of(stage))].push_back(stage);
  for (const std::vector<int>& stages : stages_of)
    terms.push_back(stages.empty() ? RankTerms{} : make_terms(of, fast, slow, stages));
}

const RankTerms& Instance::terms_of(const std::vector<int>& stages) const {
  return terms[static_cast<size_t>(problem.placement.rank_of(stages.front()))];
}

Ticks Work::hidden(const Problem& problem, Ticks alone) const {
  return problem.hidden(std::clamp<Ticks>(forward - alone, 0, backward));
}

Work work_of(const Problem& problem, const std::vector<int>& stages) {
  const auto all = [&](Ticks base) {
    if (problem.microbatch_scale.empty()) return base * problem.num_microbatches;
    Ticks sum = 0;
    for (int microbatch = 0; microbatch < problem.num_microbatches; ++microbatch)
      sum += problem.scaled(base, microbatch);
    return sum;
  };
  Work work;
  for (const int stage : stages) {
    const StageWork& one = problem.work(stage);
    work.forward += all(one.forward);
    work.backward += all(one.backward_input) + all(one.backward_weight);
  }
  return work;
}

std::vector<BoundTerm> work_terms(const Problem& problem, const Work& work, Ticks hidden) {
  std::vector<BoundTerm> terms = {{"work", work.sum()}};
  if (problem.overlap > 0) terms.push_back({"hidden", -hidden});
  return terms;
}

}  // namespace pipewright::schedule
