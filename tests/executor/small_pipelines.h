#ifndef PIPEWRIGHT_TESTS_EXECUTOR_SMALL_PIPELINES_H_
#define PIPEWRIGHT_TESTS_EXECUTOR_SMALL_PIPELINES_H_

#include <ATen/core/Tensor.h>

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "pipewright/comms/world.h"
#include "pipewright/executor/executor.h"
#include "pipewright/executor/module_stage.h"
#include "pipewright/ir/schedule.h"

// Pipelines of a few lines, whose stages are functions of a stage and its inputs:
//
//   const ir::Program program = named("1F1B", 2, 4);
//   expect_no_errors(2, [&](int rank, comms::World& world) {
//     ExecutorHere executor(program, stages_of(program, rank, function), world, {.loss = sum_of});
//     executor.step({.inputs = {at::ones({4}, tests::here())}});
//   });

namespace pipewright::executor {

// An executor on the device of the calling rank.
class ExecutorHere : public Executor {
 public:
  ExecutorHere(ir::Program program, std::map<int, LocalStage> stages, comms::World& world,
               ExecutorOptions options);
};

// A schedule of the catalogue with as few stages as it needs, lowered.
ir::Program named(const char* name, int ranks, int microbatches, const ir::Lowering& policies = {});

// A loss.
at::Tensor sum_of(const Tensors& outputs);

// Twice `x`, by a weight: something to train.
at::Tensor doubled(const at::Tensor& x);

std::shared_ptr<Stage> stage_of(autograd::Forward forward);

// The stages of a rank, all from one function of stage and inputs.
using StageFunction = std::function<Tensors(int stage, const Tensors& inputs)>;
std::map<int, LocalStage> stages_of(const ir::Program& program, int rank,
                                    const StageFunction& function);

// Runs ranks as threads, and returns what each of them threw; empty strings are no errors.
using Body = std::function<void(int rank, comms::World& world)>;
std::vector<std::string> errors_of(int ranks, const Body& body,
                                   std::chrono::milliseconds timeout = std::chrono::seconds(30));
void expect_no_errors(int ranks, const Body& body);

bool contains(const std::string& text, const std::string& part);

}  // namespace pipewright::executor

#endif  // PIPEWRIGHT_TESTS_EXECUTOR_SMALL_PIPELINES_H_
