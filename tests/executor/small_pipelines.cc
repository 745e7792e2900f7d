#include "tests/executor/small_pipelines.h"

#include <ATen/Parallel.h>
#include <ATen/ops/full.h>
#include <ATen/ops/sum.h>
#include <gtest/gtest.h>

#include <utility>

#include "pipewright/schedules/registry.h"
#include "tests/executor/models.h"
#include "tests/support/ranks/ground.h"
#include "tests/support/ranks/ranks.h"

namespace pipewright::executor {
namespace {

ExecutorOptions here(ExecutorOptions options) {
  options.device = tests::here();
  return options;
}

}  // namespace

ExecutorHere::ExecutorHere(ir::Program program, std::map<int, LocalStage> stages,
                           comms::World& world, ExecutorOptions options)
    : Executor(std::move(program), std::move(stages), world, here(std::move(options))) {}

ir::Program named(const char* name, int ranks, int microbatches, const ir::Lowering& policies) {
  const schedules::ScheduleSpec& spec = *schedules::find_schedule(name);
  return make_program(spec, {ranks, schedules::default_stages(spec, ranks), microbatches},
                      policies);
}

at::Tensor sum_of(const Tensors& outputs) { return outputs[0].sum(); }

at::Tensor doubled(const at::Tensor& x) {
  return x * at::full({1}, 2, tests::here(at::kFloat)).set_requires_grad(true);
}

std::shared_ptr<Stage> stage_of(autograd::Forward forward) {
  return std::make_shared<ModuleStage>(std::move(forward));
}

std::map<int, LocalStage> stages_of(const ir::Program& program, int rank,
                                    const StageFunction& function) {
  std::map<int, LocalStage> stages;
  for (const int stage : program.placement.stages_of(rank)) {
    stages[stage].stage =
        stage_of([function, stage](const Tensors& inputs) { return function(stage, inputs); });
  }
  return stages;
}

std::vector<std::string> errors_of(int ranks, const Body& body, std::chrono::milliseconds timeout) {
  at::set_num_threads(1);
  std::vector<comms::World> worlds = tests::make_worlds(ranks, {.timeout = timeout});
  return tests::errors_of_ranks(ranks,
                                [&](int rank) { body(rank, worlds[static_cast<size_t>(rank)]); });
}

void expect_no_errors(int ranks, const Body& body) {
  EXPECT_EQ(errors_of(ranks, body), std::vector<std::string>(static_cast<size_t>(ranks)));
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace pipewright::executor
