#include "pipewright/python/search.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <future>

#include "pipewright/schedule/problem/layers.h"
#include "pipewright/schedule/search/cuts.h"
#include "pipewright/schedule/search/front.h"

namespace pipewright::python {

std::optional<schedule::PerRank> per_rank(const std::vector<double>& limits) {
  if (limits.empty()) return std::nullopt;
  return limits.size() == 1 ? schedule::PerRank(limits.front()) : schedule::PerRank(limits);
}

namespace {

schedule::search::SearchRequest request_of(const SearchArguments& asked) {
  schedule::search::SearchRequest request;
  // With "free", the costs are given for these stages, wherever they are.
  const std::string placement = asked.placement == "free" ? "loop" : asked.placement;
  const int stages = asked.stages > 0
                         ? asked.stages
                         : schedule::search::default_stages_per_rank(placement) * asked.ranks;
  request.placement = schedule::search::named_placement(placement, asked.ranks, stages);
  if (asked.slices > 1 && asked.layers)
    throw std::invalid_argument("slices cannot be used with layers: cut the layers first");
  if (asked.microbatches > ir::kMaxMicrobatches / asked.slices)
    throw std::invalid_argument(
        fmt::format("slices: expected at most {} of all microbatches", ir::kMaxMicrobatches));
  if (asked.replicas > 2)
    throw std::invalid_argument(fmt::format("replicas: expected 1 or 2, got {}", asked.replicas));
  request.num_microbatches = asked.microbatches * asked.slices;
  if (asked.replicas == 2) {
    if (asked.layers || asked.recompute || asked.offload || asked.placement == "free")
      throw std::invalid_argument(
          "replicas cannot be used with layers, recompute, offload or placement free");
    request.placement =
        schedule::search::both_ways(request.placement, asked.microbatches, asked.slices);
  }
  request.costs = asked.costs;
  request.memory = schedule::budget_of(
      {.activations = per_rank(asked.memory), .bytes = per_rank(asked.memory_bytes)}, asked.costs);
  request.splits_backward = !asked.merge_backward;
  request.may_recompute = asked.recompute;
  request.may_offload = asked.offload;
  const auto require = [&](bool is_asked, const char* name, const char* field,
                           schedule::PerStage schedule::Costs::*sizes) {
    if (is_asked && !schedule::is_above_zero(asked.costs, sizes))
      throw std::invalid_argument(
          fmt::format("{}: expected costs with `{}` above 0, got 0", name, field));
  };
  require(asked.recompute, "recompute", "activation_bytes", &schedule::Costs::activation_bytes);
  require(asked.offload, "offload", "offload_bytes", &schedule::Costs::offload_bytes);
  if (asked.offload && asked.layers)
    throw std::invalid_argument("offload cannot be used with layers: cut the layers first");
  request.evaluations = asked.evaluations;
  request.threads = asked.threads;
  request.seed = asked.seed;
  request.noise = asked.robust;
  request.robust_by = asked.robust_by;
  ir::Diagnostics diagnostics;
  if (!schedule::check_costs(asked.costs, {}, request.placement, asked.microbatches, &diagnostics,
                             asked.slices) ||
      !schedule::check_budget(request.memory, asked.ranks, &diagnostics))
    throw ScheduleFailure(diagnostics, nullptr);
  if (asked.layers) {
    const int layers = schedule::num_layers(asked.costs);
    if (layers < stages)
      throw std::invalid_argument(fmt::format(
          "layers: expected costs with a layer for each of {} stages, got {}", stages, layers));
    return request;
  }
  request.costs = schedule::sliced(*schedule::cut_layers(asked.costs, {}, {}, stages, &diagnostics),
                                   asked.slices, request.num_microbatches);
  const schedule::Problem problem = schedule::search::problem_of(request);
  if (const auto shortage = schedule::search::shortage_of(problem))
    throw std::invalid_argument(fmt::format(
        "memory: no schedule fits rank {}: its limit is {:.1f}% of the least that one "
        "needs",
        shortage->rank,
        100 * static_cast<double>(shortage->limit) / static_cast<double>(shortage->least)));
  return request;
}

// Calls work() on a thread of its own, and sets *cancel once interrupted() returns true or throws.
template <typename Work>
auto run_interruptibly(const Work& work, const std::function<bool()>& interrupted,
                       std::atomic<bool>* cancel) {
  auto running = std::async(std::launch::async, work);
  try {
    while (running.wait_for(std::chrono::milliseconds(50)) != std::future_status::ready) {
      if (interrupted()) *cancel = true;
    }
  } catch (...) {
    *cancel = true;
    running.wait();
    throw;
  }
  return running.get();
}

SearchOutcome outcome_of(schedule::search::SearchResult result, std::string placement,
                         const schedule::MemoryBudget& memory) {
  const int stages = result.order.placement.num_stages();
  const std::optional<schedule::PerRank> limit = memory.limit();
  return {Schedule(ir::AnySchedule(std::move(result.order))),
          result.cost,
          result.makespan,
          result.bubble_rate,
          result.cost / (1 + result.gap()),
          result.gap(),
          std::string(result.bound.name),
          result.found_by,
          result.evaluations,
          std::move(placement),
          stages,
          limit ? std::vector<double>(limit->values().begin(), limit->values().end())
                : std::vector<double>(),
          result.robustness};
}

}  // namespace

namespace {

SearchOutcome search_as(const SearchArguments& arguments,
                        const std::function<bool()>& interrupted) {
  schedule::search::SearchRequest request = request_of(arguments);
  std::atomic<bool> cancel = false;
  request.cancel = &cancel;
  if (arguments.placement != "free" && arguments.layers) {
    auto found = run_interruptibly([&] { return schedule::search::search_cuts(request); },
                                   interrupted, &cancel);
    if (!found) throw std::invalid_argument("memory: found no cut that fits");
    return outcome_of(std::move(found->result), arguments.placement, request.memory);
  }
  if (arguments.placement != "free")
    return outcome_of(run_interruptibly([&] { return schedule::search::search_schedule(request); },
                                        interrupted, &cancel),
                      arguments.placement, request.memory);
  const int stages = request.placement.num_stages();
  const auto options = schedule::search::placement_options(arguments.ranks, stages);
  std::vector<SearchOutcome> front;
  for (schedule::search::FrontPoint& point : run_interruptibly(
           [&] {
             return arguments.layers ? schedule::search::search_cut_front(request, options)
                                     : schedule::search::search_front(request, stages, options);
           },
           interrupted, &cancel)) {
    front.push_back(outcome_of(std::move(point.result), point.option.name, point.memory));
    front.back().is_best = point.is_best;
  }
  if (front.empty())
    throw std::invalid_argument(fmt::format(
        "placement free: expected stages that can be cut into 1, 2 or 4 per rank, got {} on {} "
        "ranks",
        stages, arguments.ranks));
  SearchOutcome best = *std::ranges::min_element(front, {}, &SearchOutcome::cost);
  best.front = std::move(front);
  return best;
}

}  // namespace

SearchOutcome search(const SearchArguments& arguments, const std::function<bool()>& interrupted) {
  try {
    return search_as(arguments, interrupted);
  } catch (const schedule::search::NothingFits&) {
    throw std::invalid_argument("memory: found no schedule that fits");
  }
}

}  // namespace pipewright::python
