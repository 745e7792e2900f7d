// Runs one training step of a pipeline, with threads as ranks, and writes the losses and gradients:
//
//   executor_worker SCHEDULE RANKS MICROBATCHES ROWS WIDTH IN OUT
//
// IN is a file of doubles: for each stage two matrices [WIDTH, WIDTH], each followed by a vector
// [WIDTH], then inputs and targets [ROWS, WIDTH]. OUT has one loss per microbatch, then the
// gradients in the order of the weights. executor_peer.py is the other side.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <memory>

#include "pipewright/comms/threads/threads.h"
#include "pipewright/executor/executor.h"
#include "pipewright/executor/module_stage.h"
#include "pipewright/schedule/lowering/lower.h"
#include "pipewright/schedules/registry.h"
#include "tests/support/ranks/ranks.h"

namespace pipewright::executor {
namespace {

at::Tensor read(std::ifstream& file, at::IntArrayRef sizes) {
  at::Tensor tensor = at::empty(sizes, at::kDouble);
  file.read(static_cast<char*>(tensor.data_ptr()), static_cast<std::streamsize>(tensor.nbytes()));
  if (!file) throw std::runtime_error("the input file is too short");
  return tensor;
}

void write(std::ofstream& file, const at::Tensor& tensor) {
  const at::Tensor values = tensor.contiguous();
  file.write(static_cast<const char*>(values.data_ptr()),
             static_cast<std::streamsize>(values.nbytes()));
}

int run(char** argv) {
  at::set_num_threads(1);
  const schedules::ScheduleSpec& spec = *schedules::find_schedule(argv[1]);
  const int ranks = std::atoi(argv[2]);
  const schedules::Shape shape{ranks, schedules::default_stages(spec, ranks), std::atoi(argv[3])};
  const int64_t rows = std::atoll(argv[4]), width = std::atoll(argv[5]);
  ir::Diagnostics diagnostics;
  const ir::Program program =
      schedule::lower(schedules::make_order(spec, shape), {}, &diagnostics).value();
  std::ifstream in(argv[6], std::ios::binary);
  std::vector<Tensors> weights;
  for (int stage = 0; stage < shape.stages; ++stage) {
    Tensors& own = weights.emplace_back();
    for (int i = 0; i < 2; ++i) {
      own.push_back(read(in, {width, width}).set_requires_grad(true));
      own.push_back(read(in, {width}).set_requires_grad(true));
    }
  }
  const Batch batch = {{read(in, {rows, width})}, {}, {read(in, {rows, width})}};
  const ir::Placement& placement = program.placement;
  std::vector<at::Tensor> losses(static_cast<size_t>(program.num_microbatches));
  std::vector<comms::World> worlds = comms::thread_worlds(ranks);
  const std::string errors = tests::run_ranks(ranks, [&](int rank) {
    comms::World& world = worlds[static_cast<size_t>(rank)];
    const auto tied = std::make_shared<modules::TiedParameters>(world);
    std::map<int, Tensors> own;  // of two replicas of the model, the second one has copies
    for (const int stage : placement.stages_of(rank)) {
      own[stage] = weights[static_cast<size_t>(stage)];
      if (placement.ranks_of(stage)[0] == rank) continue;
      for (at::Tensor& weight : own[stage])
        weight = weight.detach().clone().set_requires_grad(true);
    }
    std::map<int, LocalStage> stages;
    for (const auto& [stage, w] : own) {
      stages[stage].stage = std::make_shared<ModuleStage>([&w = w](const Tensors& x) {
        return Tensors{at::linear(at::gelu(at::linear(x[0], w[0], w[1])), w[2], w[3]) + x[0]};
      });
      if (placement.num_replicas() == 1) continue;
      for (const at::Tensor& weight : w) tied->tie("weight", placement.ranks_of(stage), {weight});
    }
    Executor executor(
        program, stages, world,
        {.loss = [](const Tensors& out,
                    const Tensors& targets) { return at::mse_loss(out[0], targets[0]); },
         .tied = tied});
    const StepResult result = executor.step(batch);
    if (result.losses.empty()) return;
    const int instance = placement.instance_on(rank, placement.num_stages() - 1);
    std::ranges::copy(result.losses, losses.begin() + placement.microbatch_of_instance(instance));
  });
  if (!errors.empty()) throw std::runtime_error(errors);
  std::ofstream out(argv[7], std::ios::binary);
  for (const at::Tensor& loss : losses) write(out, loss);
  for (const Tensors& own : weights)
    for (const at::Tensor& weight : own) write(out, weight.grad());
  return out ? 0 : 1;
}

}  // namespace
}  // namespace pipewright::executor

int main(int argc, char** argv) {
  if (argc != 8) return 2;
  try {
    return pipewright::executor::run(argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
