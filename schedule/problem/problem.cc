#include "pipewright/schedule/problem/problem.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <numeric>
#include <set>
#include <span>
#include <utility>
#include <vector>

namespace pipewright::schedule {
namespace {

using ir::ActionKind;

// In all stages and microbatches together. The bounds multiply a time with two memories, which has
// to fit in 128 bits.
constexpr double kMostTicks = 1e13, kMostMemory = 2e12;

// A power of ten that turns numbers into integers.
class DecimalScale {
 public:
  // The smallest power, at least 1 / (the largest number), that makes all numbers integers; or, if
  // none below most / total does, the largest below.
  DecimalScale(const std::vector<double>& numbers, double total, double most) {
    double largest = 0;
    for (const double number : numbers) largest = std::max(largest, number);
    if (largest == 0) return;
    while (apply(largest) < 1) ++exponent_;
    while (apply(largest) >= 10) --exponent_;
    while (!fits(numbers) && apply(total) * 10 <= most) ++exponent_;
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

// The costs that decide the ticks and the unit of memory: those of the problem; or, if stages may
// recompute or offload, those of each such problem, so that all have the same.
using Range = std::span<const Costs>;

void set_times(const Costs& costs, const Range& range, Problem* problem) {
  const ir::Placement& placement = problem->placement;
  const int instances = placement.num_instances();
  const CostTable table(costs, placement);
  std::vector<double> times, transfers;
  double total = 0;
  for (const Costs& each : range) {
    const CostTable own(each, placement);
    double sum = 0;
    for (int one = 0; one < instances; ++one) {
      for (const ActionKind kind :
           {ActionKind::kForward, ActionKind::kBackwardInput, ActionKind::kBackwardWeight}) {
        times.push_back(own.of_kind(kind, one));
        sum += times.back();
      }
      times.push_back(own.lead(one));
      const int stage = placement.stage_of_instance(one);
      const bool offloads = each.offload_bytes.at(stage) > 0;
      for (const double time :
           {own.output_transfer(one), own.gradient_transfer(one),
            offloads ? each.offload.at(stage) : 0, offloads ? each.reload.at(stage) : 0}) {
        transfers.push_back(time);
        sum += time;
      }
    }
    total = std::max(total, sum);
  }
  const double scale = add_scaled(problem->microbatch_scale, &times);
  for (size_t k = 0, size = times.size(); costs.overlap > 0 && k < size; ++k)
    times.push_back(costs.overlap * times[k]);
  times.insert(times.end(), transfers.begin(), transfers.end());
  const DecimalScale ticks(times, total * scale * problem->num_microbatches, kMostTicks);
  const auto rounded = [&](double time) { return std::llround(ticks.apply(time)); };
  for (int one = 0; one < instances; ++one) {
    const int stage = placement.stage_of_instance(one);
    StageWork& work = problem->stages[static_cast<size_t>(one)];
    work.forward = rounded(table.of_kind(ActionKind::kForward, one));
    work.backward_input = rounded(table.of_kind(ActionKind::kBackwardInput, one));
    work.backward_weight = rounded(table.of_kind(ActionKind::kBackwardWeight, one));
    work.output_transfer = rounded(table.output_transfer(one));
    work.gradient_transfer = rounded(table.gradient_transfer(one));
    const bool receives_gradient =
        stage + 1 < placement.num_stages() &&
        placement.rank_of_instance(one + 1) != placement.rank_of_instance(one);
    if (receives_gradient) work.recomputation = rounded(table.lead(one));
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

// What the stages keep, in the unit of a budget.
class Sizes {
 public:
  Sizes(const MemoryBudget& memory, const Costs& costs, bool splits_backward)
      : costs_(costs),
        // Without sizes or a limit, a live activation is 1.
        counts_live_(!memory.is_set()),
        has_sizes_(!counts_live_ &&
                   !(costs.activation_bytes.is_zero() && costs.recomputed_bytes.is_zero())),
        splits_backward_(splits_backward) {}

  // From F to the end of I if the stage does not recompute.
  double whole(int stage) const {
    return activation(stage) + (has_sizes_ ? costs_.recomputed_bytes.at(stage) : 0);
  }
  double activation(int stage) const { return has_sizes_ ? costs_.activation_bytes.at(stage) : 1; }
  // The part of it that a stage offloads.
  double offloaded(int stage) const { return has_sizes_ ? costs_.offloaded_bytes(stage) : 0; }
  double weight_input(int stage) const {
    if (!splits_backward_) return 0;
    return has_sizes_ ? costs_.weight_input_bytes.at(stage) : counts_live_ ? 1 : 0.5;
  }

 private:
  const Costs& costs_;
  bool counts_live_, has_sizes_, splits_backward_;
};

// Sizes as integers, and limits so that each rank has room for `bytes`, less what is not
// activations; or for `activations` of one microbatch on all its stages.
void set_memory(const MemoryBudget& memory, const Costs& costs, const Range& range,
                Problem* problem) {
  const int stages = problem->num_stages();
  const ir::Placement& placement = problem->placement;
  std::vector<double> numbers;
  for (const Costs& each : range) {
    const Sizes sizes(memory, each, problem->splits_backward);
    for (int stage = 0; stage < stages; ++stage) {
      numbers.push_back(sizes.whole(stage));
      numbers.push_back(sizes.activation(stage));
      numbers.push_back(sizes.weight_input(stage));
      if (sizes.offloaded(stage) > 0)
        numbers.push_back(sizes.activation(stage) - sizes.offloaded(stage));
    }
  }
  const Sizes sizes(memory, costs, problem->splits_backward);
  double total = 0;
  for (int stage = 0; stage < stages; ++stage)
    total += sizes.whole(stage) + sizes.weight_input(stage);
  const DecimalScale scale(numbers, total * problem->num_microbatches, kMostMemory);
  problem->memory_unit = scale.unit();
  // 2.4999999999999996 means 2.5. What is not an integer is rounded down, limits too: so whatever
  // fits in memory fits here, and a bound holds for it.
  const auto rounded = [&](double size) {
    return static_cast<Memory>(std::floor(scale.apply(size) * (1 + 1e-12)));
  };
  std::vector<double> room(problem->memory_limits.size());
  for (size_t rank = 0; memory.bytes && rank < room.size(); ++rank)
    room[rank] = memory.bytes->at(static_cast<int>(rank));
  for (int one = 0; one < placement.num_instances(); ++one) {
    const int stage = placement.stage_of_instance(one);
    const int rank = placement.rank_of_instance(one);
    StageWork& work = problem->stages[static_cast<size_t>(one)];
    work.activation = rounded(sizes.activation(stage));
    work.recomputed = rounded(sizes.whole(stage)) - work.activation;
    if (sizes.offloaded(stage) > 0) {
      work.offloaded = work.activation - rounded(sizes.activation(stage) - sizes.offloaded(stage));
      work.activation -= work.offloaded;
    }
    work.weight_input = rounded(sizes.weight_input(stage));
    double& own = room[static_cast<size_t>(rank)];
    if (memory.activations)
      own += memory.activations->at(rank) * problem->slices * sizes.whole(stage);
    if (!memory.bytes) continue;
    own -= costs.model_bytes(stage);
    if (stage > 0 && placement.rank_of_instance(one - 1) != rank)
      own -= costs.output_bytes.at(stage - 1);
    if (stage + 1 < stages && placement.rank_of_instance(one + 1) != rank)
      own -= costs.input_gradient_bytes.at(stage + 1);
  }
  if (!memory.is_set()) return;
  for (size_t rank = 0; rank < room.size(); ++rank) {
    const double limit = scale.apply(room[rank]);
    problem->memory_limits[rank] = limit >= 1e15                              ? kNoLimit
                                   : limit < static_cast<double>(kLeastLimit) ? kLeastLimit
                                                                              : rounded(room[rank]);
  }
}

Problem make(const ir::Placement& placement, int num_microbatches, const Costs& costs,
             const Range& range, const MemoryBudget& memory, bool splits_backward) {
  Problem problem;
  problem.placement = placement;
  problem.num_microbatches = num_microbatches;
  problem.slices = costs.slices;
  problem.stages.resize(static_cast<size_t>(placement.num_instances()));
  problem.memory_limits.assign(static_cast<size_t>(placement.num_ranks()), kNoLimit);
  problem.microbatch_scale = costs.microbatch_scale;
  problem.splits_backward = splits_backward;
  problem.overlap = costs.overlap;
  set_times(costs, range, &problem);
  set_memory(memory, costs, range, &problem);
  return problem;
}

}  // namespace

MemoryBudget scaled(MemoryBudget memory, double factor) {
  for (std::optional<PerRank>* limit : {&memory.bytes, &memory.activations}) {
    if (*limit) (*limit)->scale(factor);
  }
  return memory;
}

MemoryBudget budget_of(const MemoryBudget& asked, const Costs& costs) {
  if (asked.is_set() || costs.rank_memory_bytes.empty()) return asked;
  return {.bytes = PerRank(costs.rank_memory_bytes)};
}

bool check_budget(const MemoryBudget& memory, int num_ranks, ir::Diagnostics* diagnostics) {
  const std::optional<PerRank> limit = memory.limit();
  if (!limit || !limit->is_list() || limit->values().size() == static_cast<size_t>(num_ranks))
    return true;
  diagnostics->error(ir::Rule::kCostsMismatch,
                     fmt::format("{}: expected one number, or {}, one per rank, got {}",
                                 memory.bytes ? "memory in bytes" : "memory in activations",
                                 num_ranks, limit->values().size()));
  return false;
}

Problem make_problem(const ir::Placement& placement, int num_microbatches, const Costs& costs,
                     const MemoryBudget& memory, bool splits_backward) {
  return make(placement, num_microbatches, costs, {&costs, 1}, memory, splits_backward);
}

Problem SavingProblem::with(const Saving& saving) const {
  Problem problem = plain;
  for (const int stage : saving.recompute)
    problem.stages[static_cast<size_t>(stage)] = recomputing.work(stage);
  for (const int stage : saving.offload)
    problem.stages[static_cast<size_t>(stage)] = offloading.work(stage);
  problem.saving = saving;
  return problem;
}

Costs costs_with(const Saving& saving, const Costs& costs, int num_stages) {
  return offloading(recomputing(costs, saving.recompute, num_stages), saving.offload, num_stages);
}

SavingProblem make_saving_problem(const ir::Placement& placement, int num_microbatches,
                                  const Costs& costs, const MemoryBudget& memory,
                                  bool splits_backward) {
  const int stages = placement.num_stages();
  std::vector<int> all(static_cast<size_t>(stages));
  std::iota(all.begin(), all.end(), 0);
  const std::array savings = {Saving{}, Saving{.recompute = all}, Saving{.offload = all}};
  std::vector<Costs> choices;
  for (const Saving& saving : savings) choices.push_back(costs_with(saving, costs, stages));
  std::vector<Problem> problems;
  for (size_t k = 0; k < savings.size(); ++k) {
    problems.push_back(
        make(placement, num_microbatches, choices[k], choices, memory, splits_backward));
    problems.back().saving = savings[k];
  }
  return {std::move(problems[0]), std::move(problems[1]), std::move(problems[2])};
}

}  // namespace pipewright::schedule
