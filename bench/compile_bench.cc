// Measures the compiler on one thread: generating, lowering, verifying and simulating
// Interleaved1F1B, and generating the compute order of one rank of 4096 for every schedule.
//
//   bazel run //bench:compile_bench
//   bazel run //bench:compile_bench -- --benchmark_filter=verify
//
// items_per_second is actions per second and s_per_action its inverse, counting the actions of the
// lowered program (simulate_order: of the compute order). Both stay about constant as M grows,
// because every part is linear, except for what the kernel takes to provide new memory
// (fresh_memory). bench/pytorch_compile.py compares generating and lowering with PyTorch,
// bench/python_compile.py with the Python package.
#include <benchmark/benchmark.h>

#include <optional>
#include <utility>

#include "pipewright/schedule/compile/compile.h"
#include "pipewright/schedule/lowering/lower.h"
#include "pipewright/schedule/simulate/simulate.h"
#include "pipewright/schedule/verify/verify.h"
#include "pipewright/schedules/registry.h"

namespace {

using namespace pipewright;

size_t count(const ir::Schedule& schedule) {
  size_t actions = 0;
  for (const ir::Row& row : schedule.rows) actions += row.size();
  return actions;
}

ir::Program make_and_lower(const schedules::Shape& shape) {
  ir::Diagnostics diagnostics;
  return *schedule::lower(
      schedules::make_order(*schedules::find_schedule("Interleaved1F1B"), shape), {}, &diagnostics);
}

// Arguments: P, V, M. 32, 4, 512 is 393,728 actions.
schedules::Shape shape_of(const benchmark::State& state) {
  const auto number = [&](int index) { return static_cast<int>(state.range(index)); };
  return {number(0), number(0) * number(1), number(2)};
}

void report(benchmark::State& state, size_t actions) {
  state.SetItemsProcessed(state.iterations() * static_cast<int64_t>(actions));
  state.counters["actions"] = static_cast<double>(actions);
  state.counters["s_per_action"] = benchmark::Counter(
      static_cast<double>(actions),
      benchmark::Counter::kIsIterationInvariantRate | benchmark::Counter::kInvert);
}

void make_and_lower_interleaved(benchmark::State& state) {
  size_t actions = 0;
  for (auto _ : state) {
    ir::Program program = make_and_lower(shape_of(state));
    state.PauseTiming();  // freeing the program is not measured, nor is it for PyTorch
    actions = count(program);
    program = {};
    state.ResumeTiming();
  }
  report(state, actions);
}

// By the front door, as the Python package calls it: what is lowered is verified too.
void compile_interleaved(benchmark::State& state) {
  size_t actions = 0;
  for (auto _ : state) {
    schedule::CompileResult order = schedule::compile({.source = "Interleaved1F1B",
                                                       .shape = shape_of(state),
                                                       .level = std::nullopt,
                                                       .depth = schedule::Depth::kLower});
    schedule::CompileResult program = schedule::compile(
        {.source = std::move(*order.schedule), .depth = schedule::Depth::kVerify});
    state.PauseTiming();
    actions = count(program.program());
    program = {};
    state.ResumeTiming();
  }
  report(state, actions);
}

void verify_interleaved(benchmark::State& state) {
  const ir::Program program = make_and_lower(shape_of(state));
  for (auto _ : state) {
    ir::Diagnostics diagnostics;
    if (!schedule::verify(program, {}, &diagnostics))
      state.SkipWithError("a valid program was rejected");
  }
  report(state, count(program));
}

// Simulation computes the start and end of every action: here of a compute order, below of a
// program under its channel model.
void simulate_order(benchmark::State& state) {
  const ir::ComputeOrder order =
      schedules::make_order(*schedules::find_schedule("Interleaved1F1B"), shape_of(state));
  for (auto _ : state) benchmark::DoNotOptimize(schedule::simulate(order, {}));
  report(state, 2 * static_cast<size_t>(order.placement.num_stages()) *
                    static_cast<size_t>(order.num_microbatches));
}

void simulate_program(benchmark::State& state) {
  const ir::Program program = make_and_lower(shape_of(state));
  for (auto _ : state)
    benchmark::DoNotOptimize(schedule::simulate(program, ir::ChannelModel::kEdge, 0, {}));
  report(state, count(program));
}

// What the kernel takes to provide memory that is written for the first time, which is a large part
// of the cases of 10^8 actions: 16 bytes per action.
void fresh_memory(benchmark::State& state) {
  const auto actions = static_cast<size_t>(state.range(0));
  for (auto _ : state) {
    ir::Row row(actions);
    benchmark::DoNotOptimize(row.data());
  }
  report(state, actions);
}

// One rank of a large cluster, without the others.
void one_rank_of_4096(benchmark::State& state) {
  const schedules::ScheduleSpec& spec =
      *schedules::all_schedules()[static_cast<size_t>(state.range(0))];
  if (spec.make_row == nullptr) {
    state.SkipWithError("its rows cannot be generated one by one");
    return;
  }
  const schedules::Shape shape{4096, schedules::default_stages(spec, 4096), 8192};
  for (auto _ : state) benchmark::DoNotOptimize(schedules::make_row(spec, shape, 2048));
  state.SetLabel(std::string(spec.name));
}

BENCHMARK(make_and_lower_interleaved)
    ->Args({8, 4, 512})
    ->Args({32, 4, 128})
    ->Args({32, 4, 512})
    ->Args({32, 4, 8192})
    ->Args({32, 4, 131072})
    ->Unit(benchmark::kMillisecond);
BENCHMARK(compile_interleaved)->Args({32, 4, 512})->Unit(benchmark::kMillisecond);
BENCHMARK(verify_interleaved)
    ->Args({8, 4, 512})
    ->Args({32, 4, 128})
    ->Args({32, 4, 512})
    ->Args({32, 4, 8192})
    ->Args({32, 4, 131072})
    ->Unit(benchmark::kMillisecond);
// 32, 4, 393216 is a compute order of 100.7 million actions.
BENCHMARK(simulate_order)
    ->Args({8, 4, 512})
    ->Args({32, 4, 128})
    ->Args({32, 4, 512})
    ->Args({32, 4, 393216})
    ->Unit(benchmark::kMillisecond);
BENCHMARK(simulate_program)
    ->Args({8, 4, 512})
    ->Args({32, 4, 128})
    ->Args({32, 4, 512})
    ->Args({32, 4, 131072})
    ->Unit(benchmark::kMillisecond);
BENCHMARK(fresh_memory)->Arg(100'000'000)->Unit(benchmark::kMillisecond);
BENCHMARK(one_rank_of_4096)
    ->DenseRange(0, static_cast<int>(schedules::all_schedules().size()) - 1)
    ->Unit(benchmark::kMillisecond);

}  // namespace

BENCHMARK_MAIN();
