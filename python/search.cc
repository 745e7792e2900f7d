#include "pipewright/python/search.h"

#include <fmt/format.h>

#include <atomic>
#include <chrono>
#include <future>

#include "pipewright/schedule/search/search.h"

namespace pipewright::python {
namespace {

ir::Placement placement_of(const SearchArguments& asked, int stages) {
  const auto refuse = [&](const char* expected) {
    throw std::invalid_argument(fmt::format("placement {}: expected {}, got {} stages on {} ranks",
                                            asked.placement, expected, stages, asked.ranks));
  };
  if (stages > schedule::search::kMaxSearchStages)
    refuse(fmt::format("at most {} stages", schedule::search::kMaxSearchStages).c_str());
  if (stages < asked.ranks) refuse("at least one stage per rank");
  if (asked.placement == "loop") return ir::Placement::loop(asked.ranks, stages);
  if (asked.placement == "v" && (stages % asked.ranks != 0 || stages < 2 * asked.ranks))
    refuse("a multiple of the ranks, at least 2 stages per rank");
  if (asked.placement == "wave" && (stages % (2 * asked.ranks) != 0 || stages < 4 * asked.ranks))
    refuse("an even number of stages per rank, at least 4");
  if (asked.placement != "v" && asked.placement != "wave")
    throw std::invalid_argument("placement: expected loop, v or wave, got `" + asked.placement +
                                "`");
  return ir::Placement::v(asked.ranks, stages);
}

schedule::search::SearchRequest request_of(const SearchArguments& asked) {
  const int per_rank = asked.placement == "v" ? 2 : asked.placement == "wave" ? 4 : 1;
  schedule::search::SearchRequest request;
  request.placement = placement_of(asked, asked.stages > 0 ? asked.stages : per_rank * asked.ranks);
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
