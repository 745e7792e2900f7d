#include "pipewright/schedule/bounds/rank_terms.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>

#include "pipewright/schedule/bounds/knapsack.h"

namespace pipewright::schedule {
namespace {

using search::Memory;
using search::Problem;
using search::StageWork;
using search::Ticks;

// The microbatch whose times come first.
template <typename Before>
int extreme(const Problem& problem, Before before) {
  const std::vector<double>& scale = problem.microbatch_scale;
  if (scale.empty()) return 0;
  return static_cast<int>(std::ranges::min_element(scale, before) - scale.begin());
}

}  // namespace

Instance::Instance(const Problem& of)
    : problem(of),
      fast(of, extreme(of, std::less())),
      slow(of, extreme(of, std::greater())),
      stages_of(static_cast<size_t>(of.num_ranks())) {
  for (int stage = 0; stage < of.num_stages(); ++stage)
    stages_of[static_cast<size_t>(of.placement.rank_of(stage))].push_back(stage);
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

RankTerms terms_of(const Instance& instance, const std::vector<int>& stages) {
  const Problem& problem = instance.problem;
  const Chain &fast = instance.fast, &slow = instance.slow;
  const int64_t count = problem.num_microbatches;
  const int first = stages.front(), last = stages.back();
  // A microbatch goes up through the stages of the rank and comes back down. Its Fs on the rank are
  // those of the stages up to one, and so are its Is that are left. Hence items that are sums.
  Memory whole = 0, most = 0;
  Ticks forwards = 0, backwards = 0;
  std::vector<MemoryItem> single_forwards, started, unfinished, held;
  for (const int stage : stages) {
    const StageWork& one = problem.work(stage);
    whole += one.activation;
    most += std::max(one.activation, one.weight_input);
    forwards += slow.forward(stage);
    backwards += slow.backward_input(stage) + slow.backward_weight(stage);
    single_forwards.push_back({one.activation, slow.forward(stage), count});
    started.push_back({whole, forwards, count - 1});
    unfinished.push_back({whole, backwards, count - 1});
    held.push_back({one.weight_input, slow.backward_weight(stage), count});
  }
  const Memory given = problem.memory_limit(problem.placement.rank_of(first));
  RankTerms terms;
  terms.limit = given / count >= most ? most * count : given;
  terms.all_fit = given / count >= whole;
  terms.work = work_of(problem, stages);
  const Memory rest = terms.limit - whole;  // beside one whole microbatch
  terms.fill = terms.all_fit ? forwards * count
                             : std::min(most_work(single_forwards, terms.limit),
                                        forwards + most_work(started, rest));
  terms.warm_up = std::max<Ticks>(0, fast.path(first, last) - terms.fill);
  terms.hidden = terms.work.hidden(problem, std::min(terms.fill, fast.path(first, last)));
  terms.chain = fast.path(last, first) - fast.forward(last) + fast.backward_input(first);
  terms.deferred = most_work(held, terms.limit);
  unfinished.insert(unfinished.end(), held.begin(), held.end());
  terms.pending = backwards + most_work(unfinished, rest);
  terms.cool_down = std::max<Ticks>(0, terms.chain + fast.backward_weight(first) - terms.pending);
  return terms;
}

}  // namespace pipewright::schedule
