// Measures one training step of a pipeline: Interleaved1F1B on 2 ranks with 2 stages each and 8
// microbatches, over Gloo; each stage is a stack of Linear and ReLU layers.
//
//   bazel build //cli:pipewright //bench:step_bench
//   bazel-bin/cli/pipewright launch -n 2 -- bazel-bin/bench/step_bench WIDTH ROWS LAYERS STEPS
//   bazel-bin/bench/step_bench WIDTH ROWS LAYERS STEPS threads
//   bazel-bin/bench/step_bench WIDTH ROWS LAYERS STEPS recording
//
// WIDTH is the size of a layer, ROWS the rows per microbatch, LAYERS the layers per stage. Prints,
// in microseconds, the median and the fastest of STEPS steps after as many steps of warm-up:
//
//   step_us     on the rank of the last stage
//   compute_us  the forwards and backwards of the busiest rank without an executor. After each step
//               every rank runs its own ones, in the order of its program, so the other core is as
//               busy as in a step.
//
// The fastest is for machines that have other work to do.
// bench/pytorch_step.py compares them with PyTorch's runtime. With `threads`, ranks are threads, so
// there is no wire; the overhead per action of the busiest rank is printed too. It includes the
// time that the schedule makes the rank wait for the other one. They begin each step together, so
// it does not include what one of them did longer before it.
//
// With `recording`, ranks are threads, and steps are timed in threes: a recorded one before two
// that are not, or after them, by turns. Each has a step before it that is not timed.
//
//   recording_ratio     the recorded step, divided by its neighbor: the median
//   plain_ratio         the step that is not recorded either, divided by the same neighbor: how far
//                       from 1 a ratio is without a cause
//   simulated_makespan  of the simulation with the costs of a recorded step, divided by the
//   measured
//                       one: the median over the recorded steps
#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "pipewright/comms/gloo/gloo.h"
#include "pipewright/comms/threads/threads.h"
#include "pipewright/executor/executor.h"
#include "pipewright/executor/module_stage.h"
#include "pipewright/schedule/compile/compile.h"
#include "pipewright/schedule/lowering/lower.h"
#include "pipewright/schedule/simulate/recorded_costs.h"
#include "pipewright/schedules/registry.h"

namespace pipewright::executor {
namespace {

struct Size {
  int64_t width, rows, layers;
};

constexpr int kRanks = 2, kStages = 4, kMicrobatches = 8;

at::Tensor loss_of(const Tensors& outputs, const Tensors& targets) {
  return at::mse_loss(outputs[0], targets[0]);
}

// One rank's stages.
struct Part {
  Part(const std::vector<int>& indices, const Size& size) {
    for (const int stage : indices) {
      Tensors own;
      for (int64_t layer = 0; layer < size.layers; ++layer) {
        // As torch::nn::Linear initializes them.
        const double bound = 1 / std::sqrt(static_cast<double>(size.width));
        own.push_back(at::empty({size.width, size.width}));
        own.push_back(at::empty({size.width}));
        for (const at::Tensor& weight : std::span(own).last(2))
          weight.uniform_(-bound, bound).set_requires_grad(true);
      }
      weights.insert(weights.end(), own.begin(), own.end());
      stages[stage].stage = std::make_shared<ModuleStage>([own](const Tensors& inputs) {
        at::Tensor x = inputs[0];
        for (size_t i = 0; i < own.size(); i += 2) x = at::relu(at::linear(x, own[i], own[i + 1]));
        return Tensors{x};
      });
    }
  }

  std::map<int, LocalStage> stages;
  Tensors weights;
};

struct Times {
  explicit Times(std::vector<double> times) {
    std::ranges::sort(times);
    median = times[times.size() / 2];
    fastest = times.front();
  }
  double median, fastest;
};

// Where ranks that are threads wait for each other.
class StartLine {
 public:
  void wait() {
    const int64_t round = arrived_++ / kRanks;
    while (arrived_.load() < (round + 1) * kRanks) std::this_thread::yield();
  }

 private:
  std::atomic<int64_t> arrived_ = 0;
};

template <typename Body>
double us_of(const Part& part, const Body& body) {
  for (const at::Tensor& weight : part.weights) weight.mutable_grad().reset();
  const auto start = std::chrono::steady_clock::now();
  body();
  const auto end = std::chrono::steady_clock::now();
  return std::chrono::duration<double, std::micro>(end - start).count();
}

// The compute actions of a row without an executor. `tensor` serves as every input, gradient and
// target.
void compute_alone(const ir::Row& row, const Part& part, const at::Tensor& tensor) {
  std::map<int, std::pair<at::Tensor, at::Tensor>> losses;  // and their inputs, by microbatch
  for (const ir::Action& action : row) {
    if (!ir::is_compute(action.kind())) continue;
    const int stage = action.parts()[0].stage(), microbatch = action.parts()[0].microbatch();
    Stage& compute = *part.stages.at(stage).stage;
    const bool is_last = stage == kStages - 1;
    if (action.kind() == ir::ActionKind::kForward) {
      const Tensors outputs =
          compute.forward(microbatch, {tensor.detach().set_requires_grad(stage > 0)});
      if (!is_last) continue;
      const at::Tensor leaf = outputs[0].detach().set_requires_grad(true);
      losses[microbatch] = {loss_of({leaf}, {tensor}), leaf};
      continue;
    }
    at::Tensor grad = tensor;
    if (is_last) {
      const auto [loss, leaf] = std::move(losses.extract(microbatch).mapped());
      loss.backward();
      grad = leaf.grad();
    }
    compute.backward(microbatch, {grad});
  }
}

ir::Program make_program() {
  ir::Diagnostics diagnostics;
  return schedule::lower(schedules::make_order(*schedules::find_schedule("Interleaved1F1B"),
                                               {kRanks, kStages, kMicrobatches}),
                         {}, &diagnostics)
      .value();
}

// Those of the rank with the largest median, on all ranks.
Times of_busiest(comms::World& world, Times times) {
  const auto key = [](const char* what, int rank) {
    return "step_bench/" + std::string(what) + std::to_string(rank);
  };
  const auto get = [&](const std::string& name) {
    return std::stod(world.store()->get_to_str(name));
  };
  world.store()->set(key("fastest", world.rank()), std::to_string(times.fastest));
  world.store()->set(key("median", world.rank()), std::to_string(times.median));
  for (int rank = 0; rank < world.size(); ++rank) {
    const double median = get(key("median", rank));
    if (median <= times.median) continue;
    times.median = median;
    times.fastest = get(key("fastest", rank));
  }
  return times;
}

// `line` is null if ranks are processes.
void run_rank(comms::World& world, const Size& size, int64_t steps, StartLine* line) {
  const ir::Program program = make_program();
  const ir::Row& row = program.rows[static_cast<size_t>(world.rank())];
  const Part part(program.placement.stages_of(world.rank()), size);
  Executor executor(program, part.stages, world, {.loss = loss_of});
  const at::Tensor inputs = at::randn({kMicrobatches * size.rows, size.width});
  const Batch batch = {{inputs}, {}, {at::randn_like(inputs)}};
  const at::Tensor microbatch = inputs.narrow(0, 0, size.rows);
  std::vector<double> step_times, compute_times;
  for (int64_t step = -steps; step < steps; ++step) {
    if (line) line->wait();
    const double step_us = us_of(part, [&] { executor.step(batch); });
    if (line) line->wait();
    const double compute_us = us_of(part, [&] { compute_alone(row, part, microbatch); });
    if (step < 0) continue;
    step_times.push_back(step_us);
    compute_times.push_back(compute_us);
  }
  const Times step(step_times), compute = of_busiest(world, Times(compute_times));
  if (!part.stages.contains(kStages - 1)) return;
  std::printf("step_us %.1f %.1f\ncompute_us %.1f %.1f\n", step.median, step.fastest,
              compute.median, compute.fastest);
  if (line) {
    std::printf("overhead_us_per_action %.2f\n",
                (step.median - compute.median) / static_cast<double>(row.size()));
  }
}

double median_of(std::vector<double> values) { return Times(std::move(values)).median; }

// What the simulator makes of a step's recorded costs, divided by what was measured.
double simulated_makespan(const ir::Program& program, const ir::Timeline& measured) {
  const ir::Recording recording = ir::recording_of_seconds(measured);
  const schedule::CompileResult compiled = schedule::compile({.source = ir::AnySchedule(program)});
  const schedule::SimulateResult predicted =
      schedule::simulate(compiled, {.costs = schedule::recorded_costs(program, recording)});
  return predicted.simulation->report.makespan /
         ir::span_of(program.rows, recording.timeline).duration();
}

void compare_recorded(comms::World& world, const Size& size, int64_t steps) {
  const ir::Program program = make_program();
  const Part part(program.placement.stages_of(world.rank()), size);
  Executor executor(program, part.stages, world, {.loss = loss_of});
  const at::Tensor inputs = at::randn({kMicrobatches * size.rows, size.width});
  const Batch batch = {{inputs}, {}, {at::randn_like(inputs)}};
  const auto step_us = [&] { return us_of(part, [&] { executor.step(batch); }); };
  std::vector<double> recorded_ratios, plain_ratios;
  std::vector<ir::Timeline> measured;
  // A step after one that is not timed, so that what happens between steps has no effect on it.
  const auto timed = [&](bool recorded) {
    step_us();
    executor.record(recorded);
    const double time = step_us();
    if (recorded) measured.push_back(executor.recording());
    executor.record(false);
    return time;
  };
  for (int64_t step = -steps; step < steps; ++step) {
    if (step == 0) measured.clear();
    const bool first = step % 2 == 0;  // whether the recorded step comes first
    const double with = first ? timed(true) : 0, without = timed(false);
    const double without_again = timed(false), with_later = first ? with : timed(true);
    if (step < 0) continue;
    recorded_ratios.push_back(with_later / (first ? without : without_again));
    plain_ratios.push_back(first ? without_again / without : without / without_again);
  }
  if (world.rank() > 0) return;
  std::vector<double> simulated;
  for (const ir::Timeline& one : measured) simulated.push_back(simulated_makespan(program, one));
  std::printf("recording_ratio %.4f\nplain_ratio %.4f\nsimulated_makespan %.4f\n",
              median_of(recorded_ratios), median_of(plain_ratios), median_of(simulated));
}

enum class Mode { kProcesses, kThreads, kRecording };

int run(const Size& size, int64_t steps, Mode mode) {
  at::set_num_threads(1);
  if (mode == Mode::kProcesses) {
    comms::World world = comms::gloo_world(comms::read_environment());
    run_rank(world, size, steps, /*line=*/nullptr);
    return 0;
  }
  std::vector<comms::World> worlds = comms::thread_worlds(kRanks);
  StartLine line;
  std::vector<std::jthread> ranks;
  for (comms::World& world : worlds) {
    ranks.emplace_back([&] {
      if (mode == Mode::kRecording) return compare_recorded(world, size, steps);
      run_rank(world, size, steps, &line);
    });
  }
  return 0;
}

}  // namespace
}  // namespace pipewright::executor

int main(int argc, char** argv) {
  using pipewright::executor::Mode;
  const char* const mode = argc == 6 ? argv[5] : "";
  const bool threads = std::strcmp(mode, "threads") == 0;
  const bool recording = std::strcmp(mode, "recording") == 0;
  if (argc != 5 && !threads && !recording) {
    std::fprintf(stderr, "usage: step_bench WIDTH ROWS LAYERS STEPS [threads|recording]\n");
    return 2;
  }
  return pipewright::executor::run({std::atoll(argv[1]), std::atoll(argv[2]), std::atoll(argv[3])},
                                   std::atoll(argv[4]),
                                   recording ? Mode::kRecording
                                   : threads ? Mode::kThreads
                                             : Mode::kProcesses);
}
