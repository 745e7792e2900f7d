#include "pipewright/schedule/bounds/rank_memory.h"

#include <algorithm>

namespace pipewright::schedule {

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

}  // namespace pipewright::schedule
