#include "pipewright/schedules/plan_cost.h"

#include <algorithm>
#include <cstddef>
#include <vector>

#include "pipewright/ir/walk.h"

namespace pipewright::schedules {

int64_t plan_cost(const ir::Placement& placement, int num_microbatches, const PlanTimes& times,
                  const ir::Rows& rows) {
  const int num_stages = placement.num_stages();
  const auto index = [&](int stage, int microbatch) {
    return static_cast<size_t>(stage) * static_cast<size_t>(num_microbatches) +
           static_cast<size_t>(microbatch);
  };
  constexpr int64_t kNotDone = -1;
  std::vector<int64_t> forward_end(index(num_stages, 0), kNotDone), input_end(forward_end);
  struct Rank {
    int64_t start = kNotDone, time = 0;
  };
  std::vector<Rank> ranks(rows.size());
  // When the input of an action arrives.
  const auto arrival = [&](const ir::ActionPart& action) -> int64_t {
    const int stage = action.stage();
    const auto after = [&](const std::vector<int64_t>& ends, int from, int64_t transfer) {
      const int64_t end = ends[index(from, action.microbatch())];
      return end == kNotDone ? kNotDone : end + transfer;
    };
    const auto of = [&](int from) { return times.stages[static_cast<size_t>(from)]; };
    if (action.kind() == ir::ActionKind::kForward)
      return stage == 0 ? 0 : after(forward_end, stage - 1, of(stage - 1).output_transfer);
    if (action.kind() == ir::ActionKind::kBackwardInput)
      return stage + 1 == num_stages ? after(forward_end, stage, 0)
                                     : after(input_end, stage + 1, of(stage + 1).gradient_transfer);
    return 0;  // W comes after its I in its row
  };
  ir::Walk walk(rows);
  walk.run([&](size_t number, const ir::Action& next, uint32_t) {
    const ir::ActionPart action = next.parts()[0];
    const int64_t input = arrival(action);
    if (input == kNotDone) return false;
    Rank& rank = ranks[number];
    const StageTimes& own = times.stages[static_cast<size_t>(action.stage())];
    const int64_t begin = std::max(rank.time, input);
    if (rank.start == kNotDone) rank.start = begin;
    const bool is_forward = action.kind() == ir::ActionKind::kForward;
    const bool is_input = action.kind() == ir::ActionKind::kBackwardInput;
    const int64_t time = is_forward ? own.forward
                         : is_input ? own.backward_input
                                    : own.backward_weight;
    rank.time = begin + times.scaled(time, action.microbatch());
    if (is_forward) forward_end[index(action.stage(), action.microbatch())] = rank.time;
    if (is_input) input_end[index(action.stage(), action.microbatch())] = rank.time;
    for (const int user : {action.stage() - 1, action.stage() + 1}) {
      if (user >= 0 && user < num_stages) walk.wake(static_cast<size_t>(placement.rank_of(user)));
    }
    return true;
  });
  int64_t cost = 0;
  for (const Rank& rank : ranks) cost = std::max(cost, rank.time - rank.start);
  return cost;
}

}  // namespace pipewright::schedules
