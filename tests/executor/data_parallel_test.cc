// What the executor asks of a stage's data parallelism, and when.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tests/channel_model/programs.h"
#include "tests/executor/small_pipelines.h"
#include "tests/support/ranks/ground.h"

namespace pipewright::executor {
namespace {

using channel_model::program_of;

class RecordsCalls final : public modules::DataParallel {
 public:
  explicit RecordsCalls(std::string* text) : text_(text) {}
  void unshard() override { *text_ += "unshard "; }
  void wait_unshard() override { *text_ += "wait_unshard "; }
  void reshard() override { *text_ += "reshard "; }
  void before_backward(int microbatch, bool last) override {
    *text_ += "backward" + std::to_string(microbatch) + (last ? "!" : "") + " ";
  }
  void after_last_backward() override { *text_ += "after "; }
  void reduce_grad() override { *text_ += "reduce_grad "; }
  void wait_reduce() override { *text_ += "wait_reduce "; }

 private:
  std::string* text_;
};

std::string calls_of_stage0(const ir::Program& program) {
  std::string calls;
  expect_no_errors(program.placement.num_ranks(), [&](int rank, comms::World& world) {
    auto stages = stages_of(program, rank, [](int, const Tensors& in) {
      return Tensors{in[0] * at::ones({1}, tests::here()).set_requires_grad(true)};
    });
    if (rank == 0) stages[0].data_parallel = std::make_shared<RecordsCalls>(&calls);
    ExecutorHere executor(program, stages, world, {.loss = sum_of});
    executor.step({.inputs = {at::ones({8}, tests::here())}});
  });
  return calls;
}

TEST(Executor, CallsDataParallelInProgramOrder) {
  EXPECT_EQ(calls_of_stage0(named("1F1B", 2, 2)),
            "unshard wait_unshard backward0 backward1! after reduce_grad wait_reduce reshard ");
  EXPECT_EQ(calls_of_stage0(named("1F1B", 2, 4, {.reduce_every = 2})),
            "unshard wait_unshard backward0 backward1! after reduce_grad wait_reduce backward2 "
            "backward3! after reduce_grad wait_reduce reshard ");
  // Each B is an I and a W, and only a W can be the last.
  EXPECT_EQ(calls_of_stage0(named("1F1B", 2, 2, {.split_backward = true})),
            "unshard wait_unshard backward0 backward0 backward1 backward1! after reduce_grad "
            "wait_reduce reshard ");
  // Before the next REDUCE_GRAD, and the last one at the end.
  EXPECT_EQ(
      calls_of_stage0(named("1F1B", 2, 4, {.reduce_every = 2, .defer_reduce_grad_wait = true})),
      "unshard wait_unshard backward0 backward1! after reduce_grad backward2 backward3! "
      "after wait_reduce reduce_grad reshard wait_reduce ");
}

// Without WAITs, the end of the step waits.
TEST(Executor, WaitsForReductionsAtTheEndOfAProgramForTorch211) {
  EXPECT_EQ(calls_of_stage0(named("1F1B", 2, 4, {.torch = ir::Torch::k2_11, .reduce_every = 2})),
            "unshard wait_unshard backward0 backward1! after reduce_grad backward2 backward3! "
            "after reduce_grad reshard wait_reduce ");
}

// Reduces when it is waited for.
class LateReduction final : public modules::DataParallel {
 public:
  explicit LateReduction(at::Tensor weight) : weight_(std::move(weight)) {}
  void unshard() override {}
  void wait_unshard() override {}
  void reshard() override {}
  void before_backward(int, bool) override {}
  void reduce_grad() override { is_posted_ = true; }
  void wait_reduce() override {
    if (std::exchange(is_posted_, false)) weight_.mutable_grad().mul_(10);
  }

 private:
  at::Tensor weight_;
  bool is_posted_ = false;
};

TEST(Executor, StepReturnsAfterEveryReduction) {
  const ir::Program program = named("1F1B", 2, 2);
  expect_no_errors(2, [&](int rank, comms::World& world) {
    const at::Tensor weight = at::ones({1}, tests::here()).set_requires_grad(true);
    auto stages =
        stages_of(program, rank, [&](int, const Tensors& in) { return Tensors{in[0] * weight}; });
    stages.begin()->second.data_parallel = std::make_shared<LateReduction>(weight);
    ExecutorHere executor(program, stages, world, {.loss = sum_of});
    executor.step({.inputs = {at::ones({4}, tests::here())}});
    EXPECT_EQ(weight.grad().item<float>(), 10 * 4.f / 2);
  });
}

// A program without UNSHARD keeps its parameters unsharded throughout, in evaluation too.
TEST(Executor, EvaluationFollowsTheProgramsResidency) {
  const ir::Program program = program_of(ir::Placement::loop(1, 1), 1, {"0F0 0B0"});
  std::string calls;
  expect_no_errors(1, [&](int rank, comms::World& world) {
    auto stages = stages_of(program, rank, [](int, const Tensors& in) {
      return Tensors{in[0] * at::ones({1}, tests::here()).set_requires_grad(true)};
    });
    stages[0].data_parallel = std::make_shared<RecordsCalls>(&calls);
    ExecutorHere executor(program, stages, world, {.loss = sum_of});
    executor.eval({.inputs = {at::ones({1}, tests::here())}});
    executor.step({.inputs = {at::ones({1}, tests::here())}});
  });
  EXPECT_EQ(calls, "unshard wait_unshard reshard unshard wait_unshard backward0 reshard ");
}

// No gather is left in flight after the step; the next one starts resharded.
TEST(Executor, AnUnshardAtTheEndIsWaitedFor) {
  const ir::Program program =
      program_of(ir::Placement::loop(1, 1), 1, {"0UNSHARD 0F0 0RESHARD 0UNSHARD"});
  std::string calls;
  expect_no_errors(1, [&](int rank, comms::World& world) {
    auto stages = stages_of(program, rank, [](int, const Tensors& in) { return in; });
    stages[0].data_parallel = std::make_shared<RecordsCalls>(&calls);
    ExecutorHere executor(program, stages, world, {.loss = sum_of, .allow_unverified = true});
    executor.step({.inputs = {at::ones({1})}});
  });
  EXPECT_EQ(calls, "unshard wait_unshard reshard unshard wait_unshard ");
}

}  // namespace
}  // namespace pipewright::executor
