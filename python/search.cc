#include "pipewright/python/search.h"

#include <fmt/format.h>

#include <atomic>
#include <chrono>
#include <future>

#include "pipewright/schedule/search/named_placement.h"
#include "pipewright/schedule/search/search.h"

namespace pipewright::python {
namespace {

schedule::search::SearchRequest request_of(const SearchArguments& asked) {
  schedule::search::SearchRequest request;
  const int stages = asked.stages > 0
                         ? asked.stages
                         : schedule::search::default_stages_per_rank(asked.placement) * asked.ranks;
  request.placement = schedule::search::named_placement(asked.placement, asked.ranks, stages);
  request.num_microbatches = asked.microbatches;
  request.costs = asked.costs;
  request.memory = {.activations = asked.memory, .bytes = asked.memory_bytes};
  request.splits_backward = !asked.merge_backward;
  request.evaluations = asked.evaluations;
  request.threads = asked.threads;
  request.seed = asked.seed;
  request.noise = asked.robust;
  ir::Diagnostics diagnostics;
  if (!schedule::check_costs(asked.costs, {}, request.placement, asked.microbatches, &diagnostics))
    throw ScheduleFailure(diagnostics, nullptr);
  const schedule::search::Problem problem = schedule::search::problem_of(request);
  if (const auto shortage = schedule::search::shortage_of(problem))
    throw std::invalid_argument(fmt::format(
        "memory: no schedule fits rank {}: its limit is {:.1f}% of the least that one "
        "needs",
        shortage->rank,
        100 * static_cast<double>(shortage->limit) / static_cast<double>(shortage->least)));
  return request;
}

}  // namespace

SearchOutcome search(const SearchArguments& arguments, const std::function<bool()>& interrupted) {
  schedule::search::SearchRequest request = request_of(arguments);
  std::atomic<bool> cancel = false;
  request.cancel = &cancel;
  std::future<schedule::search::SearchResult> running =
      std::async(std::launch::async, [&] { return schedule::search::search_schedule(request); });
  try {
    while (running.wait_for(std::chrono::milliseconds(50)) != std::future_status::ready) {
      if (interrupted()) cancel = true;
    }
  } catch (...) {
    cancel = true;
    running.wait();
    throw;
  }
  schedule::search::SearchResult result = running.get();
  return {Schedule(ir::AnySchedule(std::move(result.order))),
          result.cost,
          result.makespan,
          result.bubble_rate,
          result.cost / (1 + result.gap()),
          result.gap(),
          std::string(result.bound.name),
          result.found_by,
          result.evaluations};
}

}  // namespace pipewright::python
