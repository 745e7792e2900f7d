#include "pipewright/schedule/bounds/rank_terms.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "pipewright/schedule/bounds/bounds.h"
#include "pipewright/schedule/bounds/knapsack.h"

namespace pipewright::schedule {

namespace {

// How long before its gradient arrives any I of a stage can start. Of the microbatch with the
// greatest scale, so that a chain takes no less for one with a greater scale.
Ticks longest_lead(const Problem& problem, size_t stage) {
  const Ticks one = problem.stages[stage].recomputation;
  if (one == 0 || problem.microbatch_scale.empty()) return one;
  const auto greatest = std::ranges::max_element(problem.microbatch_scale);
  return problem.scaled(one, static_cast<int>(greatest - problem.microbatch_scale.begin()));
}

}  // namespace

Chain::Chain(const Problem& problem, int microbatch) {
  const auto stages = static_cast<size_t>(problem.num_stages());
  for (const StageWork& work : problem.stages) {
    forward_.push_back(problem.scaled(work.forward, microbatch));
    backward_input_.push_back(problem.scaled(work.backward_input, microbatch));
    backward_weight_.push_back(problem.scaled(work.backward_weight, microbatch));
  }
  forward_start_.resize(stages);
  backward_end_.resize(stages);
  for (size_t stage = 0; stage < stages; ++stage) {
    forward_start_[stage] = turn_;
    turn_ += forward_[stage];
    if (stage + 1 < stages) turn_ += problem.stages[stage].output_transfer;
  }
  Ticks time = 0;
  for (size_t stage = stages; stage-- > 0;) {
    if (stage + 1 < stages) time += problem.stages[stage + 1].gradient_transfer;
    time -= longest_lead(problem, stage);
    time += backward_input_[stage];
    backward_end_[stage] = time;
  }
}

namespace {

std::vector<MemoryItem> weighed(const std::vector<UnfinishedItem>& items, Ticks share) {
  std::vector<MemoryItem> all;
  all.reserve(items.size());
  for (const UnfinishedItem& item : items)
    all.push_back({item.size, share * item.inputs + kWholeShare * item.weights, item.count});
  return all;
}

}  // namespace

RestAtShare::RestAtShare(const std::vector<UnfinishedItem>& items, Memory largest, Ticks share)
    : share_(share), items_(weighed(items, share), largest) {}

Ticks RestAtShare::scaled(Ticks chain, Ticks inputs, Ticks weights, Memory capacity) const {
  return share_ * (chain - inputs) - kWholeShare * weights - items_.most_work(capacity);
}

Ticks unscaled(Ticks scaled) {
  return scaled > 0 ? (scaled + kWholeShare - 1) / kWholeShare : scaled / kWholeShare;
}

RankMemory::RankMemory(const Problem& problem, const Chain& slow, const std::vector<int>& stages)
    : microbatches(problem.num_microbatches) {
  Memory most = 0;
  for (const int stage : stages) {
    const StageWork& one = problem.work(stage);
    whole += one.activation;
    most += std::max(one.activation, one.weight_input);
    forwards += slow.forward(stage);
    inputs += slow.backward_input(stage);
    weights += slow.backward_weight(stage);
    single_forwards.push_back({one.activation, slow.forward(stage), microbatches});
    held.push_back({one.weight_input, slow.backward_weight(stage), microbatches});
    started.push_back({whole, forwards, microbatches - 1});
    unfinished.push_back({whole, inputs, weights, microbatches - 1});
  }
  partly_started.assign(started.begin(), started.end() - 1);
  partly_finished.assign(unfinished.begin(), unfinished.end() - 1);
  for (const MemoryItem& one : held) {
    unfinished.push_back({one.size, 0, one.work, one.count});
    partly_finished.push_back(unfinished.back());
  }
  const Memory given = problem.memory_limit(problem.placement.rank_of(stages.front()));
  limit = given / microbatches >= most ? most * microbatches : given;
  all_fit = given / microbatches >= whole;
}

namespace {

constexpr Ticks kMost = std::numeric_limits<Ticks>::max();

}  // namespace

std::optional<LapIdle> lap_idle(const Chain& fast, const Chain& slow,
                                const std::vector<int>& stages, const RankMemory& memory,
                                Ticks share) {
  if (memory.fit() < 1 || (memory.microbatches - 1) / 3 < memory.fit()) return std::nullopt;
  const int first = stages.front(), last = stages.back();
  const Ticks path = fast.path(first, last), chain = fast.chain(last, first);
  const Ticks lap = fast.path(last, last) + fast.backward_input(last);
  // What a microbatch can do within the lap, and the memory that it has all the time.
  Ticks backward = 0, forward = 0;
  Memory before_backward = 0, after_forward = 0;
  for (size_t at = 0; at < stages.size(); ++at) {
    const int stage = stages[at];
    const Memory size = memory.single_forwards[at].size;
    // From the start of I_xl to that of I, and from the end of F to that of F_xl.
    if (fast.path(last, stage) - fast.path(last, last) < lap) {
      backward += slow.backward_input(stage) + slow.backward_weight(stage);
    } else {
      before_backward += size;
    }
    if (fast.head(stage, last) + fast.forward(last) - fast.forward(stage) < lap) {
      forward += slow.forward(stage);
    } else {
      after_forward += size;
    }
  }
  const Knapsack started(memory.started, memory.limit);
  const Knapsack partly_started(memory.partly_started, memory.limit);
  const RestAtShare unfinished(memory.unfinished, memory.limit, kWholeShare);
  const RestAtShare partly_finished(memory.partly_finished, memory.limit, kWholeShare);
  const RestAtShare others[] = {{memory.partly_finished, memory.limit, 0},
                                {memory.partly_finished, memory.limit, share}};
  LapIdle least{kMost, kMost, kMost};
  for (int64_t n = 1; n <= memory.fit(); ++n) {
    const Ticks forwards = n * memory.forwards, inputs = n * memory.inputs,
                weights = n * memory.weights;
    const Memory beside = memory.limit - n * memory.whole;
    const Ticks before_first = path - forwards - partly_started.most_work(beside);
    const Ticks lap_after_first = path + lap - forwards - n * backward -
                                  started.most_work(memory.limit - n * before_backward);
    least.warm_up = std::min(least.warm_up, std::max(before_first, lap_after_first));

    const Ticks lap_before_last = unfinished.scaled(chain + lap, n * forward + inputs, weights,
                                                    memory.limit - n * after_forward);
    const Ticks cool_down =
        std::max(lap_before_last, partly_finished.scaled(chain, inputs, weights, beside));
    least.cool_down = std::min(least.cool_down, cool_down);
    Ticks rest = cool_down;
    for (const RestAtShare& one : others)
      rest = std::max(rest, one.scaled(chain, inputs, weights, beside));
    least.rest = std::min(least.rest, rest);
  }
  least.rest = unscaled(least.rest);
  least.cool_down = unscaled(least.cool_down);
  return least;
}

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

// Whether a cost T has a solution follows from one pass over the ranks, last one first, which takes
// the least late_x that the rank after it and the idle time allow: less never hurts the ranks
// before. A larger T allows more idle time, so bisection finds the smallest T.

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
