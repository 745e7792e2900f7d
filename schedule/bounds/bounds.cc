// What the bounds of one rank have in common is computed once per rank (RankTerms); each bound is
// then a sum of these terms, and the terms are what it reports.
//
// The nested bounds maximise over pairs of ranks (r, x) with r0 < x0. head and tail are differences
// of values at r0 and x0, so a pass over the stages in pipeline order, which keeps the best r so
// far, takes linear time. Area computations use 128 bits: microbatches * time * memory.
#include "pipewright/schedule/bounds/bounds.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "pipewright/schedule/bounds/knapsack.h"
#include "pipewright/schedule/bounds/rank_terms.h"

namespace pipewright::schedule {
namespace {

__extension__ using Area = __int128;

Bound with_sum(Bound bound) {
  for (const BoundTerm& term : bound.terms) bound.value += term.value;
  return bound;
}

void keep_larger(Bound bound, Bound* best) {
  if (bound.value > best->value) *best = std::move(bound);
}

// The largest bound that `terms(rank, stages)` returns for any rank; no terms for no bound.
template <typename Terms>
Bound of_one_rank(const Instance& instance, std::string_view name, Terms terms) {
  Bound best{.name = name};
  for (size_t rank = 0; rank < instance.stages_of.size(); ++rank) {
    const std::vector<int>& stages = instance.stages_of[rank];
    if (stages.empty()) continue;
    keep_larger(with_sum({.name = name, .rank = static_cast<int>(rank), .terms = terms(stages)}),
                &best);
  }
  return best;
}

// Whether the nested bounds also take r = x, with head 0 and the last W of x as tail.
enum class Pairs { kDifferent, kAll };

// The largest sum of head, the terms of the window of x that `window(stages)` returns, and tail,
// over all pairs of ranks; no terms for no bound.
template <typename Window>
Bound nested(const Instance& instance, std::string_view name, Pairs pairs, Window window) {
  const Chain& fast = instance.fast;
  const ir::Placement& placement = instance.problem.placement;
  Bound best{.name = name};
  int outer = -1;  // the first stage of the rank with the largest head + tail
  for (int stage = 0; stage < placement.num_stages(); ++stage) {
    const int rank = placement.rank_of(stage);
    const std::vector<int>& stages = instance.stages_of[static_cast<size_t>(rank)];
    if (stages.front() != stage) continue;
    const auto head = [&] { return fast.head(outer, stage); };
    const auto tail = [&] { return fast.tail(outer, stage) + fast.backward_weight(outer); };
    const bool is_outer = outer < 0 || head() + tail() < fast.backward_weight(stage);
    if (is_outer && pairs == Pairs::kAll) outer = stage;
    if (outer >= 0) {
      if (std::vector<BoundTerm> terms = window(stages); !terms.empty()) {
        terms.insert(terms.begin(), {"head", head()});
        terms.push_back({"tail", tail()});
        keep_larger(with_sum({.name = name,
                              .rank = placement.rank_of(outer),
                              .other = outer == stage ? -1 : rank,
                              .terms = std::move(terms)}),
                    &best);
      }
    }
    if (is_outer) outer = stage;
  }
  return best;
}

// Some kind of action: how long it takes, and what it adds to the memory in use.
struct Ramp {
  Memory size;
  Ticks time;
};

// The area below `limit` that is unused while such actions fill an empty memory one by one: see
// memory_area in bounds.h.
Area ramp_area(const std::vector<Ramp>& actions, Memory limit) {
  Ramp fastest{0, 0};
  Memory largest = 0;
  for (const Ramp& one : actions) {
    if (one.size <= 0) continue;
    largest = std::max(largest, one.size);
    if (fastest.size == 0 || Area{one.time} * fastest.size < Area{fastest.time} * one.size)
      fastest = one;
  }
  if (fastest.size == 0 || limit <= largest) return 0;
  return Area{limit} * (limit - largest) * fastest.time / (2 * Area{fastest.size});
}

// What the activations of a rank occupy over time, without ramps.
Area lifetimes_area(const Instance& instance, const std::vector<int>& stages) {
  const Chain& fast = instance.fast;
  Area area = 0;
  for (const int stage : stages) {
    const StageWork& one = instance.problem.work(stage);
    area += Area{fast.path(stage, stage) + fast.backward_input(stage)} * one.activation +
            Area{fast.backward_weight(stage)} * one.weight_input;
  }
  return area * instance.problem.num_microbatches;
}

Area ramp_of_forwards(const Instance& instance, const std::vector<int>& stages, Memory limit) {
  std::vector<Ramp> forwards;
  for (const int stage : stages) {
    const StageWork& one = instance.problem.work(stage);
    // I may make the memory of its microbatch larger.
    forwards.push_back({std::max(one.activation, one.weight_input), instance.fast.forward(stage)});
  }
  return ramp_area(forwards, limit);
}

// Seen backwards in time, I adds what it frees, and so does W.
Area ramp_of_backwards(const Instance& instance, const std::vector<int>& stages, Memory limit) {
  std::vector<Ramp> backwards;
  for (const int stage : stages) {
    const StageWork& one = instance.problem.work(stage);
    backwards.push_back({one.activation - one.weight_input, instance.fast.backward_input(stage)});
    backwards.push_back({one.weight_input, instance.fast.backward_weight(stage)});
  }
  return ramp_area(backwards, limit);
}

Ticks divided(Area area, Memory limit) {
  return static_cast<Ticks>((area + limit - 1) / limit);  // rounded up; the area is not negative
}

Bound work(const Instance& instance) {
  const Problem& problem = instance.problem;
  return of_one_rank(instance, "work", [&](const std::vector<int>& stages) {
    const Work all = work_of(problem, stages);
    return work_terms(problem, all, all.hidden(problem, 0));
  });
}

Bound one_microbatch(const Instance& instance) {
  const Chain& slow = instance.slow;
  return of_one_rank(instance, "one_microbatch", [&](const std::vector<int>& stages) {
    const int first = stages.front();
    return std::vector<BoundTerm>{{"path", slow.path(first, first) + slow.backward_input(first)},
                                  {"backward_weight", slow.backward_weight(first)}};
  });
}

Bound warm_up_and_cool_down(const Instance& instance) {
  return of_one_rank(instance, "warm_up_and_cool_down", [&](const std::vector<int>& stages) {
    const RankTerms& terms = instance.terms_of(stages);
    const Ticks cool_down = terms.cool_down;
    const bool both = !terms.all_fit;
    std::vector<BoundTerm> all = work_terms(instance.problem, terms.work, terms.hidden);
    all.push_back({"warm_up", both || terms.warm_up >= cool_down ? terms.warm_up : 0});
    all.push_back({"cool_down", both || terms.warm_up < cool_down ? cool_down : 0});
    return all;
  });
}

Bound nested_window(const Instance& instance) {
  return nested(instance, "nested_window", Pairs::kDifferent, [&](const std::vector<int>& stages) {
    const RankTerms& terms = instance.terms_of(stages);
    std::vector<BoundTerm> all = work_terms(instance.problem, terms.work, terms.hidden);
    all.push_back({"warm_up", terms.warm_up});
    all.push_back({"cool_down", terms.rest});
    return all;
  });
}

Bound memory_area(const Instance& instance) {
  return of_one_rank(instance, "memory_area",
                     [&](const std::vector<int>& stages) -> std::vector<BoundTerm> {
                       const Memory limit = instance.terms_of(stages).limit;
                       if (limit <= 0) return {};
                       const Area area = lifetimes_area(instance, stages) +
                                         ramp_of_forwards(instance, stages, limit) +
                                         ramp_of_backwards(instance, stages, limit);
                       return {{"memory_area", divided(area, limit)}};
                     });
}

Bound nested_memory_area(const Instance& instance) {
  return nested(instance, "nested_memory_area", Pairs::kDifferent,
                [&](const std::vector<int>& stages) -> std::vector<BoundTerm> {
                  const Memory limit = instance.terms_of(stages).limit;
                  if (limit <= 0) return {};
                  const Area area =
                      lifetimes_area(instance, stages) + ramp_of_forwards(instance, stages, limit);
                  Ticks left = 0;
                  for (const int stage : stages)
                    left = std::max(left, instance.fast.backward_weight(stage));
                  return {{"memory_area", divided(area, limit)}, {"weights_left", -left}};
                });
}

Bound lifetimes(const Instance& instance) {
  const Chain& fast = instance.fast;
  return of_one_rank(
      instance, "lifetimes", [&](const std::vector<int>& stages) -> std::vector<BoundTerm> {
        const int first = stages.front();
        const Memory size = instance.problem.work(first).activation;
        const int64_t count = instance.problem.num_microbatches;
        const int64_t colours =
            size == 0 ? count
                      : std::clamp<int64_t>(instance.terms_of(stages).limit / size, 1, count);
        return {{"lifetimes", (count + colours - 1) / colours *
                                  (fast.path(first, first) + fast.backward_input(first))},
                {"backward_weight", fast.backward_weight(first)}};
      });
}

// K times the window of x: theorem 4 of docs/bounds.md, without the division.
Bound whole_microbatches(const Instance& instance) {
  const Chain& fast = instance.fast;
  const auto window = [&](const std::vector<int>& stages) -> std::vector<BoundTerm> {
    const int last = stages.back();
    const int64_t count = instance.problem.num_microbatches;
    const Memory limit = instance.terms_of(stages).limit;
    Memory whole = 0;
    for (const int stage : stages) whole += instance.problem.work(stage).activation;
    if (whole == 0 || limit < whole) return {};
    // The most microbatches between F_xl and I_xl, beside this memory.
    const auto beside = [&](Memory memory) {
      return std::min(count, std::max<Memory>(0, limit - memory) / whole);
    };
    const int64_t most = beside(0);
    Area area = Area{count} * (fast.path(last, last) + fast.backward_input(last));
    std::vector<MemoryItem> left;  // Ws that run after the window
    Memory started = 0;
    for (const int stage : stages) {
      const StageWork& one = instance.problem.work(stage);
      started += one.activation;
      const int64_t others = beside(started);
      const Ticks forward = fast.forward(stage), shown = forward - instance.problem.hidden(forward);
      area += Area{shown + fast.backward_input(stage)} *
              (stage == last ? most * (most - 1) / 2
                             : count * (most - others) + others * (others + 1) / 2);
      const Ticks lost = fast.backward_weight(stage) * (most - beside(one.weight_input));
      area += Area{count} * lost;
      left.push_back({one.weight_input, lost, count});
    }
    return {{"whole_microbatches", divided(area - most_work(left, limit), most)}};
  };
  return nested(instance, "whole_microbatches", Pairs::kAll, window);
}

Bound copies(const Instance& instance) {
  const Chain& fast = instance.fast;
  return of_one_rank(instance, "copies",
                     [&](const std::vector<int>& stages) -> std::vector<BoundTerm> {
                       Ticks each = 0;
                       const int first = stages.front();
                       int outer = -1;  // the first stage with copies
                       for (const int stage : stages) {
                         const StageWork& one = instance.problem.work(stage);
                         each += one.offload + one.reload;
                         if (outer < 0 && each > 0) outer = stage;
                       }
                       if (outer < 0) return {};
                       return {{"head", fast.head(first, outer) + fast.forward(outer)},
                               {"copies", instance.problem.num_microbatches * each},
                               {"tail", fast.backward_input(outer) + fast.tail(first, outer) +
                                            fast.backward_weight(first)}};
                     });
}

}  // namespace

namespace {

// The problem of one replica: its microbatches on its stages.
Problem replica_of(const Problem& problem, int index) {
  const ir::Placement& placement = problem.placement;
  const int first = index * placement.num_stages();
  Problem part = problem;
  part.placement = placement.replica(index);
  part.stages.assign(problem.stages.begin() + first,
                     problem.stages.begin() + first + placement.num_stages());
  part.num_microbatches = placement.microbatches_of_instance(first, problem.num_microbatches);
  if (!problem.microbatch_scale.empty()) {
    const auto scale = problem.microbatch_scale.begin() + placement.microbatch_of_instance(first);
    part.microbatch_scale.assign(scale, scale + part.num_microbatches);
  }
  return part;
}

// The larger of what `bound` says of a replica alone and of the work of a rank for both: a schedule
// of both contains one of each, whose ranks are busy for a part of their spans.
Bound of_replicas(const Problem& problem, Bound (*bound)(const Problem&)) {
  const Problem replicas[] = {replica_of(problem, 0), replica_of(problem, 1)};
  Bound best;
  for (int rank = 0; rank < problem.num_ranks(); ++rank) {
    Work both;
    for (const Problem& one : replicas) {
      const Work work = work_of(one, one.placement.stages_of(rank));
      both.forward += work.forward;
      both.backward += work.backward;
    }
    keep_larger(with_sum({.name = "work",
                          .rank = rank,
                          .terms = work_terms(problem, both, both.hidden(problem, 0))}),
                &best);
  }
  for (const Problem& one : replicas) keep_larger(bound(one), &best);
  return best;
}

}  // namespace

Bound work_bound(const Problem& problem) {
  if (problem.placement.num_replicas() > 1) return of_replicas(problem, work_bound);
  return work(Instance(problem));
}

Problem allowing_whole_backwards(Problem problem) {
  for (StageWork& work : problem.stages)
    work.weight_input = std::min(work.weight_input, work.activation);
  return problem;
}

std::vector<Bound> lower_bounds(const Problem& problem) {
  const Problem relaxed = allowing_whole_backwards(problem);
  const Instance instance(relaxed);
  return {work(instance),          one_microbatch(instance),     warm_up_and_cool_down(instance),
          nested_window(instance), memory_area(instance),        nested_memory_area(instance),
          lifetimes(instance),     whole_microbatches(instance), first_backwards(instance),
          copies(instance)};
}

Bound lower_bound(const Problem& problem) {
  if (problem.placement.num_replicas() > 1) return of_replicas(problem, lower_bound);
  const std::vector<Bound> all = lower_bounds(problem);
  return *std::ranges::max_element(all, {}, &Bound::value);
}

}  // namespace pipewright::schedule
