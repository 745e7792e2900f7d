// The executor's contract besides parity: evaluation, accumulation, scaling, shapes, hand-over
// between stages, data parallelism, user functions, message counts, and errors that end the step on
// every rank.
#include "pipewright/executor/executor.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <barrier>
#include <mutex>

#include "pipewright/comms/recording_backend.h"
#include "pipewright/executor/module_stage.h"
#include "pipewright/schedules/registry.h"
#include "tests/channel_model/programs.h"
#include "tests/executor/models.h"
#include "tests/support/ranks/ground.h"
#include "tests/support/ranks/ranks.h"

namespace pipewright::executor {
namespace {

using channel_model::program_of;
using std::chrono::milliseconds;

// An executor on the device of the calling rank.
class Executor : public executor::Executor {
 public:
  Executor(ir::Program program, std::map<int, LocalStage> stages, comms::World& world,
           ExecutorOptions options)
      : executor::Executor(std::move(program), std::move(stages), world, here(std::move(options))) {
  }

 private:
  static ExecutorOptions here(ExecutorOptions options) {
    options.device = tests::here();
    return options;
  }
};

ir::Program named(const char* name, int ranks, int microbatches,
                  const ir::Lowering& policies = {}) {
  const schedules::ScheduleSpec& spec = *schedules::find_schedule(name);
  return make_program(spec, {ranks, schedules::default_stages(spec, ranks), microbatches},
                      policies);
}

at::Tensor sum_of(const Tensors& outputs) { return outputs[0].sum(); }

std::shared_ptr<Stage> stage_of(autograd::Forward forward) {
  return std::make_shared<ModuleStage>(std::move(forward));
}

// The stages of a rank, all from one function of stage and inputs.
using StageFunction = std::function<Tensors(int stage, const Tensors& inputs)>;
std::map<int, LocalStage> stages_of(const ir::Program& program, int rank,
                                    const StageFunction& function) {
  std::map<int, LocalStage> stages;
  for (const int stage : program.placement.stages_of(rank)) {
    stages[stage].stage =
        stage_of([function, stage](const Tensors& inputs) { return function(stage, inputs); });
  }
  return stages;
}

using Body = std::function<void(int rank, comms::World& world)>;
std::vector<std::string> errors_of(int ranks, const Body& body,
                                   milliseconds timeout = std::chrono::seconds(30)) {
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

// ---------------------------------------------------------------------------------------- results

class EvalOfEverySchedule : public testing::TestWithParam<const schedules::ScheduleSpec*> {};

TEST_P(EvalOfEverySchedule, ReturnsOutputsAndLossesAndLeavesGradientsAlone) {
  const schedules::ScheduleSpec& spec = *GetParam();
  const schedules::Shape shape{2, schedules::default_stages(spec, 2), 4};
  const ir::Program program = make_program(spec, shape);
  const int last = shape.stages - 1;
  for (const bool step_first : {false, true}) {
    expect_no_errors(2, [&](int rank, comms::World& world) {
      Model model = make_model(ModelKind::kTransformer, shape.stages, 8);
      std::map<int, LocalStage> stages;
      for (const int stage : program.placement.stages_of(rank))
        stages[stage].stage = stage_of(model.stages[static_cast<size_t>(stage)]);
      Executor executor(program, stages, world, {.loss = model.loss});
      if (step_first) executor.step({model.inputs, {}, model.targets});
      std::vector<at::Tensor> before;
      for (const Tensors& weights : model.weights)
        for (const at::Tensor& weight : weights)
          before.push_back(weight.grad().defined() ? weight.grad().clone() : at::Tensor());
      const StepResult result = executor.eval({model.inputs, {}, model.targets});
      const StepResult without_targets = executor.eval({model.inputs, {}, {}});
      size_t next = 0;
      for (const Tensors& weights : model.weights) {
        for (const at::Tensor& weight : weights) {
          const at::Tensor& grad = before[next++];
          EXPECT_EQ(weight.grad().defined(), grad.defined());
          EXPECT_TRUE(!grad.defined() || at::equal(weight.grad(), grad));
        }
      }
      if (!stages.contains(last)) {
        EXPECT_TRUE(result.losses.empty() && result.outputs.empty());
        return;
      }
      Tensors h = model.inputs;
      for (const autograd::Forward& stage : model.stages) h = stage(h);
      EXPECT_TRUE(at::allclose(result.outputs[0], h[0], 1e-12, 1e-12));
      EXPECT_FALSE(result.outputs[0].requires_grad());
      EXPECT_TRUE(at::equal(without_targets.outputs[0], result.outputs[0]));
      EXPECT_FALSE(without_targets.losses[0].defined());
      at::Tensor mean = at::zeros({}, tests::here(at::kDouble));
      for (const at::Tensor& loss : result.losses) mean += loss / 4;
      EXPECT_TRUE(at::allclose(mean, model.loss(h, model.targets).detach(), 1e-12, 1e-12));
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Schedules, EvalOfEverySchedule,
                         testing::ValuesIn(schedules::all_schedules().begin(),
                                           schedules::all_schedules().end()),
                         [](const auto& of) {
                           std::string name(of.param->name);
                           std::erase(name, '-');
                           return name;
                         });

TEST(Executor, StepRunsForwardOnlyPrograms) {
  ir::Lowering policies;
  policies.forward_only = true;
  const ir::Program program = named("ZBVZeroBubble", 2, 3, policies);
  expect_no_errors(2, [&](int rank, comms::World& world) {
    Executor executor(program,
                      stages_of(program, rank,
                                [](int stage, const Tensors& in) {
                                  EXPECT_FALSE(c10::GradMode::is_enabled());
                                  return Tensors{in[0] + stage};
                                }),
                      world, {});
    const StepResult result = executor.step({.inputs = {at::zeros({6}, tests::here())}}, true);
    if (rank != 0) return;
    EXPECT_TRUE(at::equal(result.outputs[0], at::full({6}, 0.0 + 1 + 2 + 3, tests::here())));
  });
}

// Two steps without zeroing accumulate twice the gradient, also with an evaluation in between.
// PyTorch's scale_grads would scale the first gradient again.
TEST(Executor, GradientsAccumulateOverSteps) {
  for (const char* name : {"GPipe", "1F1B", "Interleaved1F1B", "ZBVZeroBubble"}) {
    const ir::Program program = named(name, 2, 4);
    expect_no_errors(2, [&](int rank, comms::World& world) {
      Model model = make_model(ModelKind::kMlp, program.placement.num_stages(), 8);
      std::map<int, LocalStage> stages;
      for (const int stage : program.placement.stages_of(rank))
        stages[stage].stage = stage_of(model.stages[static_cast<size_t>(stage)]);
      Executor executor(program, stages, world, {.loss = model.loss});
      executor.step({model.inputs, {}, model.targets});
      const at::Tensor& weight = model.weights[static_cast<size_t>(stages.begin()->first)][0];
      const at::Tensor once = weight.grad().clone();
      executor.eval({model.inputs, {}, model.targets});
      executor.step({model.inputs, {}, model.targets});
      EXPECT_TRUE(at::allclose(weight.grad(), 2 * once, 1e-12, 0)) << name;
    });
  }
}

TEST(Executor, ScaleGradsIsTheOnlyFactor) {
  const ir::Program program = named("1F1B", 2, 4);
  for (const bool scale : {true, false}) {
    expect_no_errors(2, [&](int rank, comms::World& world) {
      const at::Tensor weight = at::full({1}, 3.0, tests::here()).set_requires_grad(true);
      Executor executor(
          program,
          stages_of(program, rank, [&](int, const Tensors& in) { return Tensors{in[0] * weight}; }),
          world, {.loss = sum_of, .scale_grads = scale});
      executor.step({.inputs = {at::ones({8}, tests::here())}});
      // Each of 8 elements of x contributes 3 to the gradient of either weight.
      EXPECT_EQ(weight.grad().item<float>(), scale ? 24.f / 4 : 24.f);
    });
  }
}

// The last stage runs microbatch 1 first; losses and outputs are still ordered by index.
TEST(Executor, ForwardsInAnyOrder) {
  ir::Program program = program_of(ir::Placement::loop(2, 2), 2,
                                   {"0F1 0SEND_F1 0F0 0SEND_F0 0RECV_B1 0B1 0RECV_B0 0B0",
                                    "1RECV_F1 1F1 1RECV_F0 1F0 1B1 1SEND_B1 1B0 1SEND_B0"});
  expect_no_errors(2, [&](int rank, comms::World& world) {
    const at::Tensor weight = at::ones({1}, tests::here()).set_requires_grad(true);
    Executor executor(
        program,
        stages_of(program, rank, [&](int, const Tensors& in) { return Tensors{in[0] * weight}; }),
        world, {.loss = sum_of});
    const StepResult result = executor.step({.inputs = {at::arange(4.0, tests::here())}}, true);
    if (rank == 0) return;
    EXPECT_EQ(result.losses[0].item<double>(), 0 + 1);
    EXPECT_EQ(result.losses[1].item<double>(), 2 + 3);
    EXPECT_TRUE(at::equal(result.outputs[0], at::arange(4.0, tests::here())));
  });
}

TEST(Executor, ExtraInputsSplitDimensionsAndUnevenSizes) {
  const ir::Program program = named("Interleaved1F1B", 2, 3);
  expect_no_errors(2, [&](int rank, comms::World& world) {
    // Seven columns in three microbatches, one mask per rank, and a scalar that is not split.
    const at::Tensor x = at::arange(14.0, tests::here()).view({2, 7});
    const at::Tensor mask = at::arange(7.0, tests::here()) + rank;
    Executor executor(program,
                      stages_of(program, rank,
                                [](int, const Tensors& in) {
                                  EXPECT_EQ(in.size(), 3u);
                                  EXPECT_EQ(in[2].dim(), 0);
                                  return Tensors{in[0] + in[1] * in[2]};
                                }),
                      world,
                      {.loss =
                           [](const Tensors& out, const Tensors& targets) {
                             EXPECT_EQ(out[0].size(1), targets[0].size(0));
                             return (out[0] * targets[0]).sum();
                           },
                       .input_dims = {1},
                       .extra_dims = {0, std::nullopt},
                       .output_dims = {-1}});
    const StepResult result = executor.step(
        {{x}, {mask, at::full({}, 2.0, tests::here())}, {at::ones({7}, tests::here())}}, true);
    if (rank == 0) return;
    const at::Tensor both =
        2 * at::arange(7.0, tests::here()) + 2 * (at::arange(7.0, tests::here()) + 1);
    EXPECT_TRUE(at::equal(result.outputs[0], x + 2 * both));
    EXPECT_EQ(result.losses[0].item<double>(),
              result.outputs[0].slice(1, 0, 3).sum().item<double>());
  });
}

TEST(Executor, TakesMicrobatches) {
  const ir::Program program = named("1F1B", 2, 2);
  expect_no_errors(2, [&](int rank, comms::World& world) {
    Executor executor(
        program,
        stages_of(program, rank, [](int, const Tensors& in) { return Tensors{in[0] * 2}; }), world,
        {.loss = sum_of});
    const Microbatches microbatches = {
        {{at::ones({3}, tests::here())}, {at::ones({5}, tests::here())}}, {}, {}};
    const StepResult result = executor.step(microbatches, true);
    if (rank == 0) return;
    EXPECT_TRUE(at::equal(result.outputs[0], at::full({8}, 4.0, tests::here())));
  });
}

TEST(Executor, StagesOfOneRankHandOverWithoutACopy) {
  const ir::Program program = named("ZBVZeroBubble", 1, 2);
  expect_no_errors(1, [&](int rank, comms::World& world) {
    const void* handed_over = nullptr;
    Executor executor(program,
                      stages_of(program, rank,
                                [&](int stage, const Tensors& in) {
                                  if (stage == 1) {
                                    EXPECT_EQ(in[0].data_ptr(), handed_over);
                                    EXPECT_TRUE(in[0].is_leaf());
                                    return Tensors{in[0] * 2};
                                  }
                                  const at::Tensor out =
                                      in[0] * at::ones({1}, tests::here()).set_requires_grad(true);
                                  handed_over = out.data_ptr();
                                  return Tensors{out};
                                }),
                      world, {.loss = sum_of});
    executor.step({.inputs = {at::ones({4}, tests::here())}});
  });
}

// A weight whose output is unused has no gradient, as without a pipeline. A gradient of zeros would
// make a difference to an optimizer with weight decay.
TEST(Executor, NoGradientStaysNoGradient) {
  for (const char* name : {"1F1B", "ZB-H1"}) {
    const ir::Program program = named(name, 2, 2);
    expect_no_errors(2, [&](int rank, comms::World& world) {
      const at::Tensor used = at::ones({1}, tests::here()).set_requires_grad(true);
      const at::Tensor unused = at::ones({1}, tests::here()).set_requires_grad(true);
      Executor executor(program,
                        stages_of(program, rank,
                                  [&](int stage, const Tensors& in) {
                                    if (stage == 1) return Tensors{in[0] * used};
                                    return Tensors{in[0] * used, in[0] * unused};
                                  }),
                        world, {.loss = sum_of});
      for (int step = 0; step < 2; ++step)
        executor.step({.inputs = {at::ones({4}, tests::here())}});
      EXPECT_TRUE(used.grad().defined());
      EXPECT_FALSE(unused.grad().defined());
    });
  }
}

// --------------------------------------------------------------------------------------- messages

TEST(Executor, SendsExactlyWhatTheProgramSays) {
  for (const schedules::ScheduleSpec* spec : schedules::all_schedules()) {
    const ir::Program program = make_program(*spec, {2, schedules::default_stages(*spec, 2), 4});
    int sends = 0;
    for (const ir::Row& row : program.rows)
      for (const ir::Action& action : row) sends += ir::is_send(action.kind());
    const auto log = std::make_shared<comms::CallLog>();
    std::barrier made(2);
    expect_no_errors(2, [&](int rank, comms::World& plain) {
      comms::World world = plain.wrapped(
          [&](const comms::BackendPtr& backend) { return comms::record(backend, log); });
      Executor executor(program,
                        stages_of(program, rank,
                                  [w = at::ones({1}, tests::here()).set_requires_grad(true)](
                                      int, const Tensors& in) { return Tensors{in[0] * w}; }),
                        world, {.loss = sum_of});
      made.arrive_and_wait();
      if (rank == 0) log->clear();  // drops the messages that connected the channels
      made.arrive_and_wait();
      executor.step({.inputs = {at::ones({8, 5}, tests::here())}});
    });
    EXPECT_EQ(log->count("send"), sends) << spec->name;
    EXPECT_EQ(log->count("recv"), sends) << spec->name;
    EXPECT_EQ(log->bytes("send"), sends * 2 * 5 * 4) << spec->name;
    EXPECT_EQ(log->calls().size(), static_cast<size_t>(2 * sends)) << spec->name;
  }
}

// Backends send memory as it is, but conj() leaves it alone and marks the tensor. Here outputs and
// gradients are so marked.
TEST(Executor, SendsConjugatesAndViewsAsTheirValues) {
  const ir::Program program = named("1F1B", 2, 2);
  const at::Tensor x = at::arange(1, 9, at::kFloat).view({4, 2});
  const at::Tensor factor = at::complex(at::arange(2, at::kFloat), at::ones({2}));
  const auto apply = [](int stage, const at::Tensor& in, const at::Tensor& weight) {
    return stage == 0 ? (in * weight).t().conj() : in.t().conj() * weight;
  };
  const auto loss_of = [](const at::Tensor& output) { return at::real(output * output).sum(); };
  at::Tensor expected[2];
  for (at::Tensor& weight : expected) weight = factor.clone().set_requires_grad(true);
  (loss_of(apply(1, apply(0, x, expected[0]), expected[1])) / 2).backward();
  expect_no_errors(2, [&](int rank, comms::World& world) {
    const at::Tensor weight = factor.clone().to(tests::here()).set_requires_grad(true);
    Executor executor(program,
                      stages_of(program, rank,
                                [&](int stage, const Tensors& in) {
                                  return Tensors{apply(stage, in[0], weight)};
                                }),
                      world, {.loss = [&](const Tensors& outputs) { return loss_of(outputs[0]); }});
    executor.step({.inputs = {x.to(tests::here())}});
    EXPECT_TRUE(at::equal(weight.grad().cpu(), expected[rank].grad()))
        << weight.grad().cpu() << expected[rank].grad();
  });
}

// ---------------------------------------------------------------------------------- data parallel

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
    Executor executor(program, stages, world, {.loss = sum_of});
    executor.step({.inputs = {at::ones({8}, tests::here())}});
  });
  return calls;
}

TEST(Executor, CallsDataParallelInProgramOrder) {
  EXPECT_EQ(calls_of_stage0(named("1F1B", 2, 2)),
            "unshard wait_unshard backward0 backward1! after reduce_grad reshard wait_reduce ");
  ir::Lowering policies;
  policies.reduce_every = 2;
  EXPECT_EQ(calls_of_stage0(named("1F1B", 2, 4, policies)),
            "unshard wait_unshard backward0 backward1! after reduce_grad backward2 backward3! "
            "after reduce_grad reshard wait_reduce ");
  policies = {};
  policies.split_backward = true;
  // Each B is an I and a W, and only a W can be the last.
  EXPECT_EQ(calls_of_stage0(named("1F1B", 2, 2, policies)),
            "unshard wait_unshard backward0 backward0 backward1 backward1! after reduce_grad "
            "reshard wait_reduce ");
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
    Executor executor(program, stages, world, {.loss = sum_of});
    executor.step({.inputs = {at::ones({4}, tests::here())}});
    EXPECT_EQ(weight.grad().item<float>(), 10 * 4.f / 2);
  });
}

// A loss that uses weights of the stage, such as a tied embedding: in a split backward they receive
// their gradients in W, once, before the reduction.
TEST(Executor, WeightsOfTheLossReceiveTheirGradientsInW) {
  ir::Lowering policies;
  policies.split_backward = true;
  const ir::Program program = named("1F1B", 2, 3, policies);
  expect_no_errors(2, [&](int rank, comms::World& world) {
    const at::Tensor weight = at::full({1}, 3.0, tests::here()).set_requires_grad(true);
    Executor executor(
        program,
        stages_of(program, rank, [&](int, const Tensors& in) { return Tensors{in[0] * weight}; }),
        world, {.loss = [&](const Tensors& out) { return (out[0] * weight).sum(); }});
    int inputs = 0;
    executor.set_function(ir::ActionKind::kBackwardInput, [&](const ActionContext& context) {
      const at::Tensor before =
          weight.grad().defined() ? weight.grad().clone() : at::zeros({1}, tests::here());
      context.run_default();
      const at::Tensor after =
          weight.grad().defined() ? weight.grad() : at::zeros({1}, tests::here());
      EXPECT_TRUE(at::equal(before, after));
      ++inputs;
    });
    executor.step({.inputs = {at::ones({6}, tests::here())}});
    EXPECT_EQ(inputs, 3);
    // The sum of x w0 w1^2 over two elements; each weight is 3.
    EXPECT_EQ(weight.grad().item<float>(), rank == 0 ? 2 * 9.f : 2 * 2 * 9.f);
  });
}

// --------------------------------------------------------------------------------- user functions

TEST(Executor, FunctionsReplaceActions) {
  const ir::Program program = named("DualPipeV", 2, 8);
  expect_no_errors(2, [&](int rank, comms::World& world) {
    const at::Tensor weight = at::ones({1}, tests::here()).set_requires_grad(true);
    Executor executor(
        program,
        stages_of(program, rank, [&](int, const Tensors& in) { return Tensors{in[0] * weight}; }),
        world, {.loss = sum_of});
    int forwards = 0, compounds = 0, backwards_in_compounds = 0;
    bool in_compound = false;
    executor.set_function(ir::ActionKind::kForward, [&](const ActionContext& context) {
      ++forwards;
      context.run_default();
    });
    executor.set_function(ir::ActionKind::kBackward, [&](const ActionContext& context) {
      backwards_in_compounds += in_compound;
      context.run_default();
    });
    executor.set_function(ir::ActionKind::kBackwardInput, [&](const ActionContext& context) {
      backwards_in_compounds += in_compound;
      context.run_default();
    });
    executor.set_function(ir::ActionKind::kOverlapFB, [&](const ActionContext& context) {
      ++compounds;
      in_compound = true;
      const auto parts = context.action().parts();
      context.run(parts[1]);  // the backward first
      context.run(parts[0]);
      in_compound = false;
    });
    int expected = 0;
    for (const ir::Action& action : program.rows[static_cast<size_t>(rank)])
      expected += action.is_compound();
    ASSERT_GT(expected, 0);
    executor.step({.inputs = {at::ones({8}, tests::here())}});
    EXPECT_EQ(forwards, 2 * 8);
    EXPECT_EQ(compounds, expected);
    EXPECT_EQ(backwards_in_compounds, expected);
    EXPECT_EQ(weight.grad().item<float>(), 2.f);
  });
}

// ----------------------------------------------------------------------------------------- errors

TEST(ExecutorErrors, AFailingActionEndsTheStepOnEveryRank) {
  const ir::Program program = named("1F1B", 4, 4);
  const std::vector<std::string> errors = errors_of(4, [&](int rank, comms::World& world) {
    int step = 0;
    Executor executor(
        program,
        stages_of(program, rank,
                  [&, seen = 0](int stage, const Tensors& in) mutable {
                    if (stage == 2 && step == 1 && ++seen == 3)
                      throw std::runtime_error("out of luck");
                    return Tensors{in[0] * at::ones({1}, tests::here()).set_requires_grad(true)};
                  }),
        world, {.loss = sum_of});
    executor.step({.inputs = {at::ones({4}, tests::here())}});
    step = 1;
    try {
      executor.step({.inputs = {at::ones({4}, tests::here())}});
    } catch (const StepError& error) {
      const std::string first = error.what();
      try {
        executor.step({.inputs = {at::ones({4}, tests::here())}});
        ADD_FAILURE();
      } catch (const StepError& again) {
        EXPECT_EQ(again.what(), "no step can run after a failure: " + first);
      }
      throw;
    }
  });
  int rank = 0;
  for (const std::string& error : errors) {
    EXPECT_EQ(error.find("rank 2, step 1, action "), 0u) << rank << ": " << error;
    EXPECT_TRUE(contains(error, "`2F2`: out of luck")) << rank << ": " << error;
    ++rank;
  }
  EXPECT_TRUE(contains(errors[1], "\n  and then rank 1, step 1, ")) << errors[1];
}

TEST(ExecutorErrors, ALostPeerEndsTheStepAfterTheTimeout) {
  const ir::Program program = named("1F1B", 2, 2);
  const std::vector<std::string> errors = errors_of(
      2,
      [&](int rank, comms::World& world) {
        Executor executor(
            program,
            stages_of(program, rank, [](int, const Tensors& in) { return Tensors{in[0] * 2}; }),
            world, {.loss = sum_of});
        executor.step({.inputs = {at::ones({4}, tests::here())}});
        if (rank == 0) executor.step({.inputs = {at::ones({4}, tests::here())}});
      },
      milliseconds(2000));
  EXPECT_TRUE(contains(errors[0], "rank 0, step 1, action ")) << errors[0];
  EXPECT_TRUE(contains(errors[0], "`0RECV_B0` waits for `1SEND_B0` of rank 1") ||
              contains(errors[0], "timed out after 2000 ms"))
      << errors[0];
}

TEST(ExecutorErrors, RanksDisagree) {
  const auto errors_with =
      [](const std::function<void(int, ir::Program&, ExecutorOptions&)>& change) {
        return errors_of(2, [&](int rank, comms::World& world) {
          ir::Program program = named("Interleaved1F1B", 2, 4);
          ExecutorOptions options{.loss = sum_of};
          change(rank, program, options);
          const auto stages =
              stages_of(program, rank, [](int, const Tensors& in) { return Tensors{in[0] * 2}; });
          Executor executor(program, stages, world, options);
        });
      };
  for (const std::string& error : errors_with([](int rank, ir::Program&program, ExecutorOptions&) {
         if (rank == 1) program = named("LoopedBFS", 2, 4);
       })) {
    EXPECT_EQ(error.find("the ranks do not agree: program is "), 0u) << error;
    EXPECT_TRUE(contains(error, " on rank 0 and ") && contains(error, " on rank 1")) << error;
  }
  for (const std::string& error : errors_with([](int rank, ir::Program&, ExecutorOptions&options) {
         options.scale_grads = rank == 0;
       })) {
    EXPECT_EQ(error, "the ranks do not agree: scale_grads is true on rank 0 and false on rank 1");
  }
  for (const std::string& error : errors_with([](int rank, ir::Program&program, ExecutorOptions&) {
         if (rank == 1) program.lowering.channels = ir::ChannelModel::kPeer;
       })) {
    EXPECT_EQ(error, "the ranks do not agree: channels is edge 0 on rank 0 and peer 0 on rank 1");
  }
}

TEST(ExecutorErrors, ShapesChange) {
  const ir::Program program = named("1F1B", 2, 2);
  const auto stages = [&](int rank) {
    return stages_of(program, rank, [](int, const Tensors& in) { return Tensors{in[0] * 2}; });
  };
  for (const std::string& error : errors_of(2, [&](int rank, comms::World&world) {
         Executor executor(program, stages(rank), world, {.loss = sum_of});
         executor.step({.inputs = {at::ones({4}, tests::here())}});
         executor.eval({.inputs = {at::ones({4}, tests::here())}});
         executor.forget_shapes();
         executor.step({.inputs = {at::ones({6}, tests::here())}});
         executor.step({.inputs = {at::ones({8}, tests::here())}});
       })) {
    EXPECT_EQ(error,
              "rank 0, step 3: input 0 of microbatch 0: expected Float [3] as in the first step, "
              "got Float [4]");
  }
  // The same input, but another output.
  for (const std::string& error : errors_of(2, [&](int rank, comms::World&world) {
         int rows = 1;
         Executor executor(
             program,
             stages_of(program, rank,
                       [&](int, const Tensors& in) { return Tensors{in[0].repeat({rows})}; }),
             world, {.loss = sum_of});
         executor.step({.inputs = {at::ones({4})}});
         rows = 2;
         executor.step({.inputs = {at::ones({4})}});
       })) {
    EXPECT_EQ(error.find("rank 0, step 1, action 2 `0SEND_F0`: `0SEND_F0`: expected output 0 to be "
                         "Float [2] as in the first step, got Float [4]"),
              0u)
        << error;
  }
  for (const std::string& error : errors_of(2, [&](int rank, comms::World&world) {
         Executor executor(program, stages(rank), world,
                           {.loss = sum_of, .output_metas = [](int, int) {
                              return TensorMetas{{at::kFloat, {3}, false}};
                            }});
         executor.step({.inputs = {at::ones({4}, tests::here())}});
       })) {
    EXPECT_EQ(error.find("rank 0, step 0, action 2 `0SEND_F0`: `0SEND_F0`: expected output 0 to be "
                         "Float [3] as in output_metas, got Float [2]"),
              0u)
        << error;
  }
}

std::string error_alone(const std::function<void(comms::World&)>& body) {
  return errors_of(1, [&](int, comms::World& world) { body(world); })[0];
}

TEST(ExecutorErrors, InvalidArguments) {
  const ir::Program program = named("ZBVZeroBubble", 1, 2);
  const auto stages =
      stages_of(program, 0, [](int, const Tensors& in) { return Tensors{in[0] * 2}; });
  EXPECT_EQ(
      error_alone([&](comms::World& world) { Executor(program, {}, world, {.loss = sum_of}); }),
      "stage 0 is missing, expected stages [0, 1] on rank 0");
  EXPECT_EQ(error_alone([&](comms::World& world) { Executor(program, stages, world, {}); }),
            "loss: expected a function on the rank of the last stage, got none");
  EXPECT_EQ(error_alone([&](comms::World& world) {
              auto more = stages;
              more[2] = more[1];
              Executor(program, more, world, {.loss = sum_of});
            }),
            "stage 2 does not belong to this rank, expected stages [0, 1] on rank 0");
  EXPECT_EQ(error_alone([&](comms::World& world) {
              Executor(named("1F1B", 2, 2), stages, world, {.loss = sum_of});
            }),
            "ranks of the program: expected 2 ranks of a world of 1, got [0, 1]");
  EXPECT_EQ(error_alone([&](comms::World& world) {
              Executor executor(program, stages, world, {.loss = sum_of});
              executor.step({.inputs = {at::ones({1}, tests::here())}});
            }),
            "rank 0, step 0: input 0: expected size at least 2 along dimension 0, one per "
            "microbatch, got 1");
  EXPECT_EQ(
      error_alone([&](comms::World& world) {
        Executor executor(program, stages, world, {.loss = sum_of});
        executor.step(Batch{});
      }),
      "rank 0, step 0: inputs: expected microbatches on the rank of the first stage, got none");
  EXPECT_EQ(error_alone([&](comms::World& world) {
              Executor executor(program, stages, world, {.loss = sum_of});
              executor.step(Microbatches{{{at::ones({1}, tests::here())}}, {}, {}});
            }),
            "rank 0, step 0: inputs: expected 2 microbatches, got 1");
  EXPECT_TRUE(contains(error_alone([&](comms::World& world) {
                         Executor executor(program, stages, world,
                                           {.loss = [](const Tensors& out) { return out[0]; }});
                         executor.step({.inputs = {at::ones({4}, tests::here())}});
                       }),
                       "`1F0`: expected a loss with one element, got Float [2]"));
}

// An error that only one rank can detect is reported on all.
TEST(ExecutorErrors, AWrongBatchOrStageOnOneRankIsReportedOnAll) {
  const ir::Program program = named("1F1B", 2, 4);
  const auto stages = [&](int rank) {
    return stages_of(program, rank, [](int, const Tensors& in) { return Tensors{in[0] * 2}; });
  };
  for (const std::string& error : errors_of(2, [&](int rank, comms::World&world) {
         Executor executor(program, stages(rank), world, {.loss = sum_of});
         executor.step({.inputs = {at::ones({rank == 0 ? 3 : 4}, tests::here())}});
       })) {
    EXPECT_EQ(error.find("rank 0, step 0: input 0: expected size at least 4 along dimension 0, one "
                         "per microbatch, got 3"),
              0u)
        << error;
  }
  const std::vector<std::string> errors = errors_of(2, [&](int rank, comms::World& world) {
    auto given = stages(rank);
    if (rank == 1) given.clear();
    Executor executor(program, given, world, {.loss = sum_of});
  });
  EXPECT_EQ(errors[0], "program rank 1: stage 1 is missing, expected stages [1] on rank 1");
  EXPECT_EQ(errors[1], "stage 1 is missing, expected stages [1] on rank 1");
}

TEST(ExecutorErrors, DetachedLoss) {
  const ir::Program program = named("1F1B", 1, 1);
  const std::string error = error_alone([&](comms::World& world) {
    Executor executor(
        program,
        stages_of(program, 0,
                  [](int, const Tensors& in) {
                    return Tensors{in[0] * at::ones({1}, tests::here()).set_requires_grad(true)};
                  }),
        world, {.loss = [](const Tensors& out) { return out[0].sum().detach(); }});
    executor.step({.inputs = {at::ones({1}, tests::here())}});
  });
  EXPECT_TRUE(contains(error, "`0F0`: the loss does not depend on the outputs, or was detached"))
      << error;
}

TEST(ExecutorErrors, AFailedSendIsReported) {
  const ir::Program program = named("1F1B", 2, 8);
  const std::vector<std::string> errors = errors_of(2, [&](int rank, comms::World& plain) {
    comms::World world = plain.wrapped([](const comms::BackendPtr& backend) {
      return comms::record(backend, std::make_shared<comms::CallLog>(),
                           [](const comms::CallRecord& call) {
                             comms::Fault fault;
                             // The first message connects the channel.
                             fault.fail_work = call.op == "send" && call.number == 3;
                             return fault;
                           });
    });
    Executor executor(
        program,
        stages_of(program, rank, [](int, const Tensors& in) { return Tensors{in[0] * 2}; }), world,
        {.loss = sum_of});
    executor.step({.inputs = {at::ones({8}, tests::here())}});
  });
  for (const std::string& error : errors)
    EXPECT_TRUE(contains(error, "injected failure of rank 0, send 3")) << error;
}

// As Gloo does once a connection is broken. The error names each action once.
TEST(ExecutorErrors, APeerThatRefusesAMessageIsNamed) {
  const ir::Program program = named("1F1B", 2, 8);
  struct Refused {
    std::string op;
    int64_t number;  // on its channel; the first message connects it
    std::string expected;
  };
  for (const auto& [op, number, expected] : std::vector<Refused>{
           {"send", 3, " `0SEND_F1`: waits for `1RECV_F1` of rank 1: injected"},
           // In the second step, where it is posted at its place.
           {"recv", 11, " `1RECV_F1`: waits for `0SEND_F1` of rank 0: injected"}}) {
    const std::vector<std::string> errors = errors_of(2, [&](int rank, comms::World& plain) {
      comms::World world = plain.wrapped([&](const comms::BackendPtr& backend) {
        return comms::record(backend, std::make_shared<comms::CallLog>(),
                             [&](const comms::CallRecord& call) {
                               comms::Fault fault;
                               fault.refuse = call.op == op && call.number == number;
                               return fault;
                             });
      });
      Executor executor(
          program,
          stages_of(program, rank, [](int, const Tensors& in) { return Tensors{in[0] * 2}; }),
          world, {.loss = sum_of});
      for (int step = 0; step < 2; ++step)
        executor.step({.inputs = {at::ones({8}, tests::here())}});
    });
    EXPECT_TRUE(contains(errors[0], expected)) << op << ": " << errors[0];
    EXPECT_TRUE(contains(errors[1], expected)) << op << ": " << errors[1];
  }
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
    Executor executor(program, stages, world, {.loss = sum_of});
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
    Executor executor(program, stages, world, {.loss = sum_of, .allow_unverified = true});
    executor.step({.inputs = {at::ones({1})}});
  });
  EXPECT_EQ(calls, "unshard wait_unshard reshard unshard wait_unshard ");
}

TEST(ExecutorErrors, AnInvalidProgramIsRejected) {
  const ir::Program program = program_of(ir::Placement::loop(1, 1), 2, {"0F0 0B0 0F1"});
  const std::string error = error_alone([&](comms::World& world) {
    Executor(program, stages_of(program, 0, [](int, const Tensors& in) { return in; }), world,
             {.loss = sum_of});
  });
  EXPECT_EQ(error.find("the program is not valid:\n"), 0u) << error;
  EXPECT_TRUE(contains(error, "error[PW030]: stage 0 on rank 0 has no B or I of microbatch 1"))
      << error;
}

// Fragments that were not verified: the state of each action is checked.
TEST(ExecutorErrors, FragmentsAreCheckedActionByAction) {
  const auto error_of = [](const std::string& row) {
    const ir::Program program = program_of(ir::Placement::loop(1, 2), 1, {row});
    return error_alone([&](comms::World& world) {
      const at::Tensor weight = at::ones({1}, tests::here()).set_requires_grad(true);
      Executor executor(
          program,
          stages_of(program, 0, [=](int, const Tensors& in) { return Tensors{in[0] * weight}; }),
          world, {.loss = sum_of, .allow_unverified = true});
      executor.step({.inputs = {at::ones({1}, tests::here())}});
    });
  };
  const auto starts = [&](const std::string& row, const std::string& start) {
    const std::string error = error_of(row);
    EXPECT_EQ(error.find("rank 0, step 0, action " + start), 0u) << error;
    EXPECT_TRUE(contains(error, "\nthe program was not verified, and is not valid:\n")) << error;
  };
  EXPECT_EQ(error_of("0F0 1F0 1B0"), "");  // a valid fragment
  starts("1F0", "0 `1F0`: needs the output of `0F0`, which has not run");
  starts("0F0 0F0", "1 `0F0`: `0F0` has already run in this step");
  starts("0F0 0B0", "1 `0B0`: needs the gradient of `1B0`, which has not run");
  starts("0F0 1B0", "1 `1B0`: `1F0` has not run");
  starts("0F0 1F0 1B0 1B0", "3 `1B0`: the backward of this microbatch has already run");
  starts("0F0 1F0 1W0", "2 `1W0`: `1I0` has not run");
  starts("0F0 1F0 1B0 1W0", "3 `1W0`: the backward of this microbatch is already complete");
  starts("0UNSHARD 0F0 1F0", "2 `1F0`: stage 1 is not unsharded");
  starts("0UNSHARD 0UNSHARD 0F0", "1 `0UNSHARD`: stage 0 is already unsharded");
  starts("0UNSHARD 0RESHARD 0RESHARD 0F0", "2 `0RESHARD`: stage 0 is not unsharded");
}

}  // namespace
}  // namespace pipewright::executor
