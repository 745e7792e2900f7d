#include "pipewright/schedule/search/catalogue.h"

#include <algorithm>
#include <string>

#include "pipewright/schedule/search/words.h"
#include "pipewright/schedules/registry.h"

namespace pipewright::schedule::search {
namespace {

std::vector<schedules::StageTimes> times_of(const Problem& problem) {
  std::vector<schedules::StageTimes> times;
  for (const StageWork& work : problem.stages)
    times.push_back({work.forward, work.backward_input, work.backward_weight, work.output_transfer,
                     work.gradient_transfer});
  return times;
}

// The live activations of one stage for which every rank has memory, up to those of ZBV.
int live_activations(const Problem& problem) {
  Memory least = 2 * Memory{problem.num_ranks()};
  for (int stage = 0; stage < problem.num_stages(); ++stage) {
    const Memory limit = problem.memory_limit(problem.placement.rank_of(stage));
    least = std::min(least, limit / std::max<Memory>(1, problem.work(stage).activation));
  }
  return static_cast<int>(least);
}

}  // namespace

std::vector<Candidate> catalogue(const Problem& problem, const std::atomic<bool>* cancel) {
  const schedules::Shape plain = {.ranks = problem.num_ranks(),
                                  .stages = problem.num_stages(),
                                  .microbatches = problem.num_microbatches};
  schedules::Shape limited = plain;
  limited.memory = live_activations(problem);
  std::vector<schedules::Shape> shapes = {plain, limited};
  for (const int rounds : {1, 2}) {
    schedules::Shape grouped = plain;
    grouped.group_size = rounds * plain.ranks;
    shapes.push_back(grouped);
    grouped.extra_warmup = true;
    shapes.push_back(grouped);
  }
  const std::vector<schedules::StageTimes> times = times_of(problem);
  std::vector<Candidate> candidates;
  for (const schedules::ScheduleSpec* spec : schedules::all_schedules()) {
    for (const schedules::Shape& shape : shapes) {
      if (cancel != nullptr && cancel->load(std::memory_order_relaxed) && !candidates.empty())
        return candidates;
      if (schedules::shape_error(*spec, shape)) continue;
      const ir::ComputeOrder order =
          schedules::make_order(*spec, shape, {times, problem.microbatch_scale});
      if (order.placement != problem.placement) continue;
      candidates.push_back({order.name, words_of(problem, order)});
    }
  }
  return candidates;
}

}  // namespace pipewright::schedule::search
