#include "pipewright/schedule/search/catalogue.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "pipewright/schedule/bounds/bounds.h"
#include "pipewright/schedule/problem/problem.h"
#include "pipewright/schedule/search/replay.h"
#include "pipewright/schedule/search/words.h"
#include "pipewright/schedules/registry.h"

namespace pipewright::schedule::search {
namespace {

// Plans for different memory limits, multiplied by the ranks, so that they take seconds at most:
// a plan takes 20 ms on 8 ranks and a second on 32. Upwards and downwards each, enough for all
// limits of up to 8 ranks.
constexpr int kMostPlans = 256;

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
  for (int stage = 0; stage < problem.num_instances(); ++stage) {
    const Memory limit = problem.memory_limit(problem.placement.rank_of_instance(stage));
    least = std::min(least, limit / std::max<Memory>(1, problem.work(stage).activation));
  }
  return static_cast<int>(least);
}

// No schedule with at most `live` activations per rank, from F to the end of W, costs less.
Ticks bound_with(Problem problem, int live) {
  for (StageWork& work : problem.stages) {
    work.activation = 1;
    work.weight_input = problem.splits_backward ? 1 : 0;
    work.recomputed = 0;
  }
  std::ranges::fill(problem.memory_limits, live);
  return lower_bound(problem).value;
}

// Whether the schedule is planned for a memory limit.
bool takes_memory_limit(const schedules::ScheduleSpec& spec) {
  return std::ranges::find(spec.options, "memory", &schedules::ShapeOption::name) !=
         spec.options.end();
}

class Catalogue {
 public:
  Catalogue(const Problem& problem, const std::atomic<bool>* cancel, bool memory_plans)
      : problem_(problem),
        cancel_(cancel),
        memory_plans_(memory_plans),
        times_(times_of(problem)),
        replay_(problem) {}

  std::vector<Candidate> all() {
    const schedules::Shape plain = {.ranks = problem_.num_ranks(),
                                    .stages = problem_.num_stages(),
                                    .microbatches = problem_.num_microbatches / problem_.slices};
    std::vector<schedules::Shape> shapes = {plain};
    for (const int rounds : {1, 2}) {
      schedules::Shape grouped = plain;
      grouped.group_size = rounds * plain.ranks;
      shapes.push_back(grouped);
      grouped.extra_warmup = true;
      shapes.push_back(grouped);
    }
    std::vector<const schedules::ScheduleSpec*> planned;
    for (const schedules::ScheduleSpec* spec : schedules::all_schedules()) {
      const bool takes_memory = takes_memory_limit(*spec);
      if (takes_memory && !memory_plans_) continue;
      for (const schedules::Shape& shape : shapes) add(*spec, shape);
      if (takes_memory) planned.push_back(spec);
    }
    for (const schedules::ScheduleSpec* spec : planned) add_plans(*spec, plain);
    return std::move(candidates_);
  }

 private:
  // Tries a plan for every memory limit that may lead to the least cost: a plan for less memory may
  // be better. Upwards from the memory that there is, as long as plans fit and none is proved
  // optimal, because a plan's limit counts activations until W ends, and the problem only a part of
  // them after I. Downwards until a bound proves that less memory costs at least as much as what is
  // there. At most kMostPlans each.
  void add_plans(const schedules::ScheduleSpec& spec, const schedules::Shape& shape) {
    const int live = live_activations(problem_);
    const int plans = std::max(1, kMostPlans / shape.ranks);
    const int least = live + 1 - plans;
    // No building block has a use for more.
    const int most = std::min(
        {live + plans, 4 * (shape.ranks + 1), shape.stages_per_rank() * shape.microbatches});
    const auto for_limit = [&](int limit) {
      schedules::Shape limited = shape;
      limited.memory = static_cast<double>(limit) / shape.stages_per_rank();
      return limited;
    };
    for (int limit = live + 1; limit <= most; ++limit) {
      if (!exists(spec, for_limit(limit)) || is_optimal()) break;
      if (!add(spec, for_limit(limit))) break;
    }
    for (int limit = live; limit >= std::max(1, least); --limit) {
      if (!exists(spec, for_limit(limit))) break;
      if (limit < live && best_ && bound_with(problem_, limit) >= *best_) break;
      add(spec, for_limit(limit));
    }
  }

  // Adds a schedule if it exists for the problem and the search is not cancelled. Returns whether
  // it was added and fits the problem's memory.
  bool add(const schedules::ScheduleSpec& spec, schedules::Shape shape) {
    shape.slices = problem_.slices;
    if (is_cancelled(cancel_) && !candidates_.empty()) return false;
    if (!exists(spec, shape)) return false;
    const ir::ComputeOrder order =
        schedules::make_order(spec, shape, {times_, problem_.microbatch_scale});
    const Words& words =
        candidates_.emplace_back(Candidate{order.name, words_of(problem_, order)}).words;
    if (!fits_memory(problem_, words) || !replay_.run(words)) return false;
    best_ = std::min(best_.value_or(replay_.cost()), replay_.cost());
    return true;
  }

  // Whether there is such a schedule for the problem.
  bool exists(const schedules::ScheduleSpec& spec, const schedules::Shape& shape) const {
    return !schedules::shape_error(spec, shape) &&
           schedules::placement_of(spec, shape) == problem_.placement;
  }

  bool is_optimal() {
    if (!bound_) bound_ = lower_bound(problem_).value;
    return best_ && *best_ <= *bound_;
  }

  const Problem& problem_;
  const std::atomic<bool>* cancel_;
  bool memory_plans_;
  std::vector<schedules::StageTimes> times_;
  Replay replay_;
  std::vector<Candidate> candidates_;
  std::optional<Ticks> best_;   // the least cost of the candidates that fit
  std::optional<Ticks> bound_;  // no schedule costs less; computed when it is needed
};

}  // namespace

std::vector<Candidate> catalogue(const Problem& problem, const std::atomic<bool>* cancel,
                                 bool memory_plans) {
  return Catalogue(problem, cancel, memory_plans).all();
}

}  // namespace pipewright::schedule::search
