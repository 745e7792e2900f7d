#include "pipewright/schedule/search/make_problem.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>
#include <set>
#include <vector>

namespace pipewright::schedule::search {
namespace {

using ir::ActionKind;

constexpr double kMostTicks = 1e13;  // in all stages and microbatches together

// A power of ten that turns numbers into integers.
class DecimalScale {
 public:
  // The smallest power, at least 1 / (the largest number), that makes all numbers integers; or, if
  // none below kMostTicks / total does, the largest below.
  DecimalScale(const std::vector<double>& numbers, double total) {
    double largest = 0;
    for (const double number : numbers) largest = std::max(largest, number);
    if (largest == 0) return;
    while (apply(largest) < 1) ++exponent_;
    while (apply(largest) >= 10) --exponent_;
    while (!fits(numbers) && apply(total) * 10 <= kMostTicks) ++exponent_;
  }

  // 10^exponent is exact up to 22, and a division by it is rounded once.
  double apply(double number) const {
    return exponent_ >= 0 ? number * power(exponent_) : number / power(-exponent_);
  }
  // How much 1 is.
  double unit() const { return exponent_ >= 0 ? 1 / power(exponent_) : power(-exponent_); }

 private:
  static double power(int exponent) {
    double result = 1;
    for (; exponent > 0; --exponent) result *= 10;
    return result;
  }
  bool fits(const std::vector<double>& numbers) const {
    return std::ranges::all_of(numbers, [&](double number) {
      const double scaled = apply(number);
      return std::abs(scaled - std::round(scaled)) <= 1e-13 * scaled;
    });
  }

  int exponent_ = 0;
};

// Adds the computes' times of all microbatches, which are to be integers too; if those are very
// many, one that stands for numbers of any number of digits. Returns the largest scale, at least 1.
double add_scaled(const std::vector<double>& microbatch_scale, std::vector<double>* times) {
  constexpr size_t kMostTimes = 100'000;
  const std::set<double> scales(microbatch_scale.begin(), microbatch_scale.end());
  const std::set<double> bases(times->begin(), times->end());
  if (scales.empty()) return 1;
  if (scales.size() * bases.size() > kMostTimes) {
    times->push_back(*bases.rbegin() / 3);
  } else {
    for (const double scale : scales) {
      for (const double base : bases) times->push_back(base * scale);
    }
  }
  return std::max(1.0, *scales.rbegin());
}

// `longest` has the same costs, or those with which backwards take longest: they decide the ticks.
void set_times(const Costs& costs, const CostTable& table, const CostTable& longest,
               Problem* problem) {
  const int stages = problem->num_stages();
  std::vector<double> times, transfers;
  double total = 0;
  for (int stage = 0; stage < stages; ++stage) {
    for (const ActionKind kind :
         {ActionKind::kForward, ActionKind::kBackwardInput, ActionKind::kBackwardWeight}) {
      times.push_back(longest.of_kind(kind, stage));
      total += times.back();
    }
    transfers.push_back(table.output_transfer(stage));
    transfers.push_back(table.gradient_transfer(stage));
    if (costs.offload_bytes.at(stage) == 0) continue;
    transfers.push_back(costs.offload.at(stage));
    transfers.push_back(costs.reload.at(stage));
  }
  for (const double time : transfers) total += time;
  for (int stage = 0; stage < stages; ++stage)
    times.push_back(table.of_kind(ActionKind::kBackwardInput, stage));
  const double scale = add_scaled(problem->microbatch_scale, &times);
  for (size_t k = 0, size = times.size(); costs.overlap > 0 && k < size; ++k)
    times.push_back(costs.overlap * times[k]);
  times.insert(times.end(), transfers.begin(), transfers.end());
  const DecimalScale ticks(times, total * scale * problem->num_microbatches);
  const auto rounded = [&](double time) { return std::llround(ticks.apply(time)); };
  for (int stage = 0; stage < stages; ++stage) {
    StageWork& work = problem->stages[static_cast<size_t>(stage)];
    work.forward = rounded(table.of_kind(ActionKind::kForward, stage));
    work.backward_input = rounded(table.of_kind(ActionKind::kBackwardInput, stage));
    work.backward_weight = rounded(table.of_kind(ActionKind::kBackwardWeight, stage));
    work.output_transfer = rounded(table.output_transfer(stage));
    work.gradient_transfer = rounded(table.gradient_transfer(stage));
    if (costs.offload_bytes.at(stage) > 0) {
      work.offload = rounded(costs.offload.at(stage));
      work.reload = rounded(costs.reload.at(stage));
    }
    if (!problem->splits_backward) {
      work.backward_input += work.backward_weight;
      work.backward_weight = 0;
    }
  }
  problem->tick = ticks.unit();
}

// Sizes as integers, and limits so that each rank has room for `bytes`, less what is not
// activations; or for `activations` of one microbatch on all its stages.
// The unit fits checkpoints too if stages may recompute.
void set_memory(const MemoryBudget& memory, const Costs& costs, bool may_recompute,
                Problem* problem) {
  const int stages = problem->num_stages();
  const ir::Placement& placement = problem->placement;
  const std::optional<double>& activations = memory.activations;
  const bool counts_live = !memory.is_set();
  const bool has_sizes =
      !counts_live && !(costs.activation_bytes.is_zero() && costs.recomputed_bytes.is_zero());
  // From F to the end of I if the stage does not recompute.
  const auto whole = [&](int stage) {
    return has_sizes ? costs.activation_bytes.at(stage) + costs.recomputed_bytes.at(stage) : 1.0;
  };
  const auto activation = [&](int stage) {
    return has_sizes ? costs.activation_bytes.at(stage) : 1.0;
  };
  // The part of it that a stage offloads.
  const auto offloaded = [&](int stage) { return has_sizes ? costs.offloaded_bytes(stage) : 0.0; };
  const auto weight_input = [&](int stage) {
    if (!problem->splits_backward) return 0.0;
    return has_sizes ? costs.weight_input_bytes.at(stage) : counts_live ? 1.0 : 0.5;
  };
  std::vector<double> sizes;
  double total = 0;
  for (int stage = 0; stage < stages; ++stage) {
    sizes.push_back(whole(stage));
    sizes.push_back(weight_input(stage));
    if (offloaded(stage) > 0) sizes.push_back(activation(stage) - offloaded(stage));
    if (has_sizes && may_recompute) sizes.push_back(costs.checkpoint_bytes.at(stage));
    total += whole(stage) + weight_input(stage);
  }
  const DecimalScale scale(sizes, total * problem->num_microbatches);
  problem->memory_unit = scale.unit();
  const auto rounded_up = [&](double size) {
    return static_cast<Memory>(std::ceil(scale.apply(size) * (1 - 1e-12)));
  };
  std::vector<double> room(problem->memory_limits.size(), memory.bytes.value_or(0));
  for (int stage = 0; stage < stages; ++stage) {
    const int rank = placement.rank_of(stage);
    StageWork& work = problem->stages[static_cast<size_t>(stage)];
    work.activation = rounded_up(activation(stage));
    work.recomputed = rounded_up(whole(stage)) - work.activation;
    if (offloaded(stage) > 0) {
      work.offloaded = work.activation - rounded_up(activation(stage) - offloaded(stage));
      work.activation -= work.offloaded;
    }
    work.weight_input = rounded_up(weight_input(stage));
    double& own = room[static_cast<size_t>(rank)];
    if (activations) own += *activations * whole(stage);
    if (!memory.bytes) continue;
    own -= costs.parameter_bytes.at(stage) + costs.gradient_bytes.at(stage);
    if (stage > 0 && placement.rank_of(stage - 1) != rank) own -= costs.output_bytes.at(stage - 1);
    if (stage + 1 < stages && placement.rank_of(stage + 1) != rank)
      own -= costs.input_gradient_bytes.at(stage + 1);
  }
  if (counts_live) return;
  for (size_t rank = 0; rank < room.size(); ++rank) {
    // 2.4999999999999996 means 2.5.
    const double limit = scale.apply(room[rank]) * (1 + 1e-12);
    problem->memory_limits[rank] = limit < 1e15 ? static_cast<Memory>(std::floor(limit)) : kNoLimit;
  }
}

Problem make(const ir::Placement& placement, int num_microbatches, const Costs& costs,
             const Costs& longest, const MemoryBudget& memory, bool splits_backward) {
  Problem problem;
  problem.placement = placement;
  problem.num_microbatches = num_microbatches;
  problem.stages.resize(static_cast<size_t>(placement.num_stages()));
  problem.memory_limits.assign(static_cast<size_t>(placement.num_ranks()), kNoLimit);
  problem.microbatch_scale = costs.microbatch_scale;
  problem.splits_backward = splits_backward;
  problem.overlap = costs.overlap;
  set_times(costs, CostTable(costs, placement), CostTable(longest, placement), &problem);
  set_memory(memory, costs, /*may_recompute=*/costs != longest || !costs.recomputed_bytes.is_zero(),
             &problem);
  return problem;
}

}  // namespace

Problem make_problem(const ir::Placement& placement, int num_microbatches, const Costs& costs,
                     const MemoryBudget& memory, bool splits_backward) {
  return make(placement, num_microbatches, costs, costs, memory, splits_backward);
}

Problem RecomputeProblem::with(std::span<const int> stages) const {
  Problem problem = plain;
  for (const int stage : stages)
    problem.stages[static_cast<size_t>(stage)] = recomputing.work(stage);
  problem.recompute.assign(stages.begin(), stages.end());
  return problem;
}

RecomputeProblem make_recompute_problem(const ir::Placement& placement, int num_microbatches,
                                        const Costs& costs, const MemoryBudget& memory,
                                        bool splits_backward) {
  std::vector<int> all(static_cast<size_t>(placement.num_stages()));
  std::iota(all.begin(), all.end(), 0);
  const Costs longest = recomputing(costs, all, placement.num_stages());
  const auto with = [&](const Costs& some) {
    return make(placement, num_microbatches, some, longest, memory, splits_backward);
  };
  RecomputeProblem both = {with(costs), with(longest)};
  both.recomputing.recompute = all;
  return both;
}

}  // namespace pipewright::schedule::search
