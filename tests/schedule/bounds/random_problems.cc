#include "tests/schedule/bounds/random_problems.h"

#include <utility>
#include <vector>

namespace pipewright::tests {

using schedule::Memory;
using schedule::Problem;
using schedule::StageWork;

ir::Placement random_placement(Random& random, int ranks) {
  switch (random.number(0, 4)) {
    case 0:
      return ir::Placement::loop(ranks, ranks);
    case 1:
      return ir::Placement::v(ranks, 2 * ranks);
    case 2:
      return ir::Placement::loop(ranks, ranks * random.number(2, 3));
    case 3:
      return ir::Placement::v(ranks, ranks * random.number(3, 4));
    default: {
      std::vector<int> rank_of_stage;
      for (int stage = random.number(ranks, 3 * ranks); stage > 0; --stage)
        rank_of_stage.push_back(random.number(0, ranks - 1));
      return ir::Placement::custom(ranks, std::move(rank_of_stage));
    }
  }
}

Problem random_problem(Random& random, ir::Placement placement, int microbatches) {
  Problem problem{.placement = std::move(placement),
                  .num_microbatches = microbatches,
                  .stages = {},
                  .memory_limits = {}};
  const bool same_costs = random.chance(40), same_memory = random.chance(60);
  const bool split = random.chance(85);
  problem.splits_backward = split;
  const auto draw = [&] {
    StageWork work{.forward = random.number(1, 20),
                   .backward_input = random.number(1, 20),
                   .backward_weight = split ? random.number(0, 20) : 0};
    work.weight_input = split ? random.number(0, 3) : 0;
    work.activation = random.number(work.weight_input == 0, 5);  // also below weight_input
    work.recomputed = random.chance(20) ? random.number(0, 5) : 0;
    return work;
  };
  const StageWork common = draw();
  const int transfer = random.chance(40) ? 0 : random.number(1, 10);
  for (int stage = 0; stage < problem.num_stages(); ++stage) {
    StageWork work = draw();
    if (same_costs)
      work = {common.forward,  common.backward_input, common.backward_weight, 0, 0,
              work.activation, work.weight_input};
    if (same_memory) {
      work.activation = common.activation;
      work.weight_input = common.weight_input;
    }
    const auto crosses = [&](int to) {
      return to >= 0 && to < problem.num_stages() &&
             problem.placement.rank_of(to) != problem.placement.rank_of(stage);
    };
    if (crosses(stage + 1))
      work.output_transfer = same_costs ? transfer : random.number(0, transfer);
    if (crosses(stage - 1))
      work.gradient_transfer = same_costs ? transfer : random.number(0, transfer);
    problem.stages.push_back(work);
  }
  for (int rank = 0; rank < problem.num_ranks(); ++rank) {
    Memory whole = 0;  // of one microbatch: the least that a schedule needs
    for (const int stage : problem.placement.stages_of(rank))
      whole += problem.work(stage).activation;
    problem.memory_limits.push_back(random.chance(10)
                                        ? schedule::kNoLimit
                                        : whole + random.number(0, 4 * problem.num_stages()));
  }
  if (random.chance(15)) {
    for (int microbatch = 0; microbatch < microbatches; ++microbatch)
      problem.microbatch_scale.push_back(random.number(5, 20) / 10.0);
  }
  return problem;
}

}  // namespace pipewright::tests
