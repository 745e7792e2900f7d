#ifndef PIPEWRIGHT_TESTS_SCHEDULE_SEARCH_RANDOM_PROBLEM_H_
#define PIPEWRIGHT_TESTS_SCHEDULE_SEARCH_RANDOM_PROBLEM_H_

#include <random>

#include "pipewright/schedule/problem/problem.h"
#include "pipewright/schedule/search/words.h"

namespace pipewright::tests {

// A small problem: any placement, different costs, transfers, sizes and limits everywhere. Every
// limit is one that a schedule can meet.
inline schedule::Problem random_problem(std::mt19937* random) {
  const auto below = [&](int n) {
    return static_cast<int>((*random)() % static_cast<unsigned>(n));
  };
  schedule::Problem problem;
  const int ranks = 1 + below(5), per_rank = 1 + below(3);
  const int stages = ranks * per_rank;
  problem.placement =
      below(2) == 0 ? ir::Placement::v(ranks, stages) : ir::Placement::loop(ranks, stages);
  problem.num_microbatches = 1 + below(10);
  problem.splits_backward = below(5) != 0;
  const int slowest = below(3) == 0 ? 1 : 20;
  for (int stage = 0; stage < stages; ++stage) {
    schedule::StageWork work = {.forward = 1 + below(slowest),
                                .backward_input = 1 + below(slowest),
                                .backward_weight = below(slowest + 1)};
    work.activation = below(4);
    work.weight_input = below(4);
    if (below(4) == 0) work.recomputed = below(5);
    if (!problem.splits_backward) work.backward_weight = work.weight_input = 0;
    const int rank = problem.placement.rank_of(stage);
    if (stage + 1 < stages && problem.placement.rank_of(stage + 1) != rank)
      work.output_transfer = below(4);
    if (stage > 0 && problem.placement.rank_of(stage - 1) != rank)
      work.gradient_transfer = below(4);
    problem.stages.push_back(work);
  }
  if (below(6) == 0) {
    for (int microbatch = 0; microbatch < problem.num_microbatches; ++microbatch)
      problem.microbatch_scale.push_back(0.5 + 0.25 * below(8));
  }
  problem.memory_limits = schedule::search::least_memory(problem);
  for (schedule::Memory& limit : problem.memory_limits) limit += below(3 * per_rank * 3);
  return problem;
}

}  // namespace pipewright::tests

#endif  // PIPEWRIGHT_TESTS_SCHEDULE_SEARCH_RANDOM_PROBLEM_H_
