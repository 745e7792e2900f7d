// Each bound holds for the span of one rank under every order of the work. The arguments:
//
// busiest_rank: a rank runs one compute at a time.
//
// one_microbatch: the span of stage 0's rank holds the F of stage 0 and its B or I for the
// slowest microbatch, and all of that microbatch's other work lies between the two.
//
// warm_up: let `first` and `last` be the lowest and the highest stage of a rank. From the start of
// its first F until its first backward can start, a microbatch goes forward from `first` to the end
// of the pipeline and back to `last`. Meanwhile the rank can only run forwards, at most as many as
// its peak number of live activations. The rest of that time is idle; the bound is this idle time
// plus the rank's work. The sums over all later stages are computed once, so the bound takes linear
// time.
#include "pipewright/schedule/simulate/lower_bounds.h"

#include <algorithm>
#include <vector>

namespace pipewright::schedule {
namespace {

using ir::ActionKind;

// The smallest and the largest factor of a microbatch.
std::pair<double, double> microbatch_scales(const Costs& costs) {
  if (costs.microbatch_scale.empty()) return {1, 1};
  const auto [least, most] = std::ranges::minmax(costs.microbatch_scale);
  return {least, most};
}

double one_microbatch_bound(const ir::Schedule& schedule, const CostTable& table,
                            double most_scale) {
  const std::vector<bool> is_split = split_stages(schedule);
  double computes = 0, transfers = 0;
  for (int stage = 0; stage < schedule.placement.num_stages(); ++stage) {
    const bool split = is_split[static_cast<size_t>(stage)];
    computes += table.of_kind(ActionKind::kForward, stage) +
                table.of_kind(split ? ActionKind::kBackwardInput : ActionKind::kBackward, stage);
    transfers += table.output_transfer(stage) + table.gradient_transfer(stage);
  }
  return most_scale * computes + transfers;
}

double warm_up_bound(const ir::Placement& placement, const CostTable& table, double least_scale,
                     double most_scale, std::span<const RankWork> ranks) {
  struct Stages {
    int first = -1, last = -1;
    double longest_forward = 0;
  };
  std::vector<Stages> stages_of(ranks.size());
  for (int stage = 0; stage < placement.num_stages(); ++stage) {
    Stages& one = stages_of[static_cast<size_t>(placement.rank_of(stage))];
    if (one.first < 0) one.first = stage;
    one.last = stage;
    one.longest_forward = std::max(one.longest_forward, table.of_kind(ActionKind::kForward, stage));
  }
  // Suffix sums: entry s is the sum over all stages from s on.
  struct Sums {
    double forward = 0, backward = 0, outputs = 0, gradients = 0;
  };
  std::vector<Sums> from(static_cast<size_t>(placement.num_stages()) + 1);
  for (int stage = placement.num_stages(); stage-- > 0;) {
    const auto at = static_cast<size_t>(stage);
    from[at] = {from[at + 1].forward + table.of_kind(ActionKind::kForward, stage),
                from[at + 1].backward + table.of_kind(ActionKind::kBackwardInput, stage),
                from[at + 1].outputs + table.output_transfer(stage),
                from[at + 1].gradients + table.gradient_transfer(stage)};
  }
  double bound = 0;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    const Stages& stages = stages_of[rank];
    if (stages.first < 0) continue;
    const Sums& out = from[static_cast<size_t>(stages.first)];
    const Sums& back = from[static_cast<size_t>(stages.last) + 1];
    const double round_trip =
        least_scale * (out.forward + back.backward) + out.outputs + back.gradients;
    const double forwards = most_scale * stages.longest_forward * ranks[rank].peak_activations;
    bound = std::max(bound, ranks[rank].busy + std::max(0.0, round_trip - forwards));
  }
  return bound;
}

}  // namespace

std::vector<bool> split_stages(const ir::Schedule& schedule) {
  std::vector<bool> is_split(static_cast<size_t>(schedule.placement.num_stages()));
  for (const ir::Row& row : schedule.rows) {
    for (const ir::Action& action : row) {
      for (const ir::ActionPart part : action.parts()) {
        if (part.kind() == ActionKind::kBackwardInput)
          is_split[static_cast<size_t>(part.stage())] = true;
      }
    }
  }
  return is_split;
}

double LowerBounds::largest() const { return std::max({busiest_rank, one_microbatch, warm_up}); }

LowerBounds lower_bounds_of(const ir::Schedule& schedule, const Costs& costs,
                            std::span<const RankWork> ranks) {
  LowerBounds bounds;
  for (const RankWork& rank : ranks) bounds.busiest_rank = std::max(bounds.busiest_rank, rank.busy);
  if (!ir::has_backward(schedule)) return bounds;
  const CostTable table(costs, schedule.placement);
  const auto [least_scale, most_scale] = microbatch_scales(costs);
  bounds.one_microbatch = one_microbatch_bound(schedule, table, most_scale);
  bounds.warm_up = warm_up_bound(schedule.placement, table, least_scale, most_scale, ranks);
  return bounds;
}

}  // namespace pipewright::schedule
