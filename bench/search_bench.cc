// Measures the parts of the search on one thread.
//
//   bazel run //bench:search_bench
//
// s_per_action is the time per action of the schedule: of the dispatcher, which decides what each
// rank runs next, and of the replay of given words. evaluations_per_second is what --budget counts,
// in a whole search with both.
#include <benchmark/benchmark.h>

#include <vector>

#include "pipewright/schedule/bounds/bounds.h"
#include "pipewright/schedule/search/dispatcher.h"
#include "pipewright/schedule/search/local_search.h"
#include "pipewright/schedule/search/replay.h"
#include "pipewright/schedule/search/solve.h"
#include "pipewright/schedule/search/templates.h"

namespace {

using namespace pipewright::schedule;
using namespace pipewright::schedule::search;

// The Zero Bubble paper's 14.6B costs on P ranks with V stages each and M microbatches, in the
// activations of 1F1B. Arguments: P, V, M.
Problem problem_of(const benchmark::State& state) {
  const auto ranks = static_cast<int>(state.range(0)), per_rank = static_cast<int>(state.range(1));
  Problem problem;
  problem.placement = pipewright::ir::Placement::v(ranks, ranks * per_rank);
  problem.num_microbatches = static_cast<int>(state.range(2));
  for (int stage = 0; stage < ranks * per_rank; ++stage)
    problem.stages.push_back({.forward = 11347 / per_rank,
                              .backward_input = 11248 / per_rank,
                              .backward_weight = 8132 / per_rank,
                              .output_transfer = 377,
                              .gradient_transfer = 377,
                              .activation = 2,
                              .weight_input = 1});
  problem.memory_limits.assign(static_cast<size_t>(ranks), Memory{2} * ranks * per_rank);
  return problem;
}

// ZB-H1's rule for one stage per rank; otherwise a V with targets, which does more per decision.
Template numbers_for(const Problem& problem) {
  const auto passes = 2 * static_cast<size_t>(stages_per_rank(problem));
  Template numbers = {.pass_delay = std::vector<int>(passes),
                      .turn_delay = std::vector<int>(passes - 1)};
  if (passes == 2) {
    numbers.cap_slope = Template::kOne;
    numbers.backward_first = true;
  }
  return numbers;
}

void report(benchmark::State& state, size_t actions) {
  state.counters["actions"] = static_cast<double>(actions);
  state.counters["s_per_action"] = benchmark::Counter(
      static_cast<double>(actions),
      benchmark::Counter::kIsIterationInvariantRate | benchmark::Counter::kInvert);
}

void dispatch_with(benchmark::State& state, const Problem& problem, const Template& numbers) {
  Dispatcher dispatcher(problem);
  for (auto _ : state) benchmark::DoNotOptimize(dispatcher.run(numbers, WakeQueue::kAsleep));
  report(state, dispatcher.actions());
}

void dispatch(benchmark::State& state) {
  const Problem problem = problem_of(state);
  dispatch_with(state, problem, numbers_for(problem));
}

// In groups of three, two of whose microbatches follow the previous one twice as closely.
void dispatch_bunched(benchmark::State& state) {
  const Problem problem = problem_of(state);
  Template numbers = numbers_for(problem);
  numbers.group = 3;
  numbers.bunch = Template::kOne / 2;
  dispatch_with(state, problem, numbers);
}

// Random templates in turn, as a search does. A processor that learns one short run by heart does
// not get that far with 32.
void dispatch_random(benchmark::State& state) {
  const Problem problem = problem_of(state);
  Random random(1);
  std::vector<Template> templates;
  for (int i = 0; i < 32; ++i) templates.push_back(random_template(problem, &random));
  Dispatcher dispatcher(problem);
  size_t actions = 0;
  for (auto _ : state) {
    actions = 0;
    for (const Template& numbers : templates) {
      benchmark::DoNotOptimize(dispatcher.run(numbers, WakeQueue::kAsleep));
      actions += dispatcher.actions();
    }
  }
  report(state, actions);
}

void replay(benchmark::State& state) {
  const Problem problem = problem_of(state);
  Dispatcher dispatcher(problem);
  if (!dispatcher.run(numbers_for(problem), WakeQueue::kAsleep))
    state.SkipWithError("the dispatcher made no schedule");
  const Words words = dispatcher.words();
  Replay replay(problem);
  for (auto _ : state) benchmark::DoNotOptimize(replay.run(words));
  report(state, dispatcher.actions());
}

void lower_bound(benchmark::State& state) {
  const Problem problem = problem_of(state);
  for (auto _ : state) benchmark::DoNotOptimize(pipewright::schedule::lower_bound(problem));
}

// A search that cannot reach its bound, so that it spends its budget.
void search(benchmark::State& state) {
  const Problem problem = problem_of(state);
  int64_t evaluations = 0;
  for (auto _ : state) evaluations += solve(problem, {.evaluations = 5'000'000}).evaluations;
  state.counters["evaluations_per_second"] =
      benchmark::Counter(static_cast<double>(evaluations), benchmark::Counter::kIsRate);
}

void shapes(benchmark::internal::Benchmark* bench) {
  bench->Args({8, 1, 24})->Args({8, 2, 24})->Args({16, 2, 48})->Args({256, 1, 512});
}
BENCHMARK(dispatch)->Apply(shapes)->Unit(benchmark::kMicrosecond);
BENCHMARK(dispatch_bunched)->Args({8, 2, 24})->Args({16, 2, 48})->Unit(benchmark::kMicrosecond);
BENCHMARK(dispatch_random)->Args({8, 2, 24})->Args({16, 2, 48})->Unit(benchmark::kMicrosecond);
BENCHMARK(replay)->Apply(shapes)->Unit(benchmark::kMicrosecond);
BENCHMARK(lower_bound)->Apply(shapes)->Unit(benchmark::kMicrosecond);
BENCHMARK(search)
    ->Args({8, 1, 24})
    ->Args({8, 2, 24})
    ->Args({16, 2, 48})
    ->Unit(benchmark::kMillisecond);

}  // namespace

BENCHMARK_MAIN();
