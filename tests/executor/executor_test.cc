// The executor's contract besides parity: evaluation, accumulation, scaling, shapes, hand-over
// between stages, messages, and user functions.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <atomic>
#include <barrier>
#include <mutex>
#include <thread>

#include "pipewright/schedules/registry.h"
#include "tests/channel_model/programs.h"
#include "tests/executor/models.h"
#include "tests/executor/small_pipelines.h"
#include "tests/support/catalogue/catalogue.h"
#include "tests/support/ranks/ground.h"
#include "tests/support/recording/recording_backend.h"

namespace pipewright::executor {
namespace {

using channel_model::program_of;

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
      ExecutorHere executor(program, stages, world, {.loss = model.loss});
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
                         testing::ValuesIn(tests::schedules_of_one_replica()), [](const auto& of) {
                           std::string name(of.param->name);
                           std::erase(name, '-');
                           return name;
                         });

TEST(Executor, StepRunsForwardOnlyPrograms) {
  ir::Lowering policies;
  policies.forward_only = true;
  const ir::Program program = named("ZBVZeroBubble", 2, 3, policies);
  expect_no_errors(2, [&](int rank, comms::World& world) {
    ExecutorHere executor(program,
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
      ExecutorHere executor(program, stages, world, {.loss = model.loss});
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
      ExecutorHere executor(
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
    ExecutorHere executor(
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
    ExecutorHere executor(program,
                          stages_of(program, rank,
                                    [](int, const Tensors& in) {
                                      EXPECT_EQ(in.size(), 3u);
                                      EXPECT_EQ(in[2].dim(), 0);
                                      return Tensors{in[0] + in[1] * doubled(in[2]) / 2};
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
    ExecutorHere executor(
        program,
        stages_of(program, rank, [](int, const Tensors& in) { return Tensors{doubled(in[0])}; }),
        world, {.loss = sum_of});
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
    ExecutorHere executor(program,
                          stages_of(program, rank,
                                    [&](int stage, const Tensors& in) {
                                      if (stage == 1) {
                                        EXPECT_EQ(in[0].data_ptr(), handed_over);
                                        EXPECT_FALSE(in[0].is_leaf());  // it may be written to
                                        return Tensors{doubled(in[0])};
                                      }
                                      const at::Tensor out =
                                          in[0] *
                                          at::ones({1}, tests::here()).set_requires_grad(true);
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
      ExecutorHere executor(program,
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

// A loss that uses weights of the stage, such as a tied embedding: in a split backward they receive
// their gradients in W, once, before the reduction.
TEST(Executor, WeightsOfTheLossReceiveTheirGradientsInW) {
  ir::Lowering policies;
  policies.split_backward = true;
  const ir::Program program = named("1F1B", 2, 3, policies);
  expect_no_errors(2, [&](int rank, comms::World& world) {
    const at::Tensor weight = at::full({1}, 3.0, tests::here()).set_requires_grad(true);
    ExecutorHere executor(
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

// --------------------------------------------------------------------------------------- messages

TEST(Executor, SendsExactlyWhatTheProgramSays) {
  for (const schedules::ScheduleSpec* spec : tests::schedules_of_one_replica()) {
    const ir::Program program = make_program(*spec, {2, schedules::default_stages(*spec, 2), 4});
    int sends = 0;
    for (const ir::Row& row : program.rows)
      for (const ir::Action& action : row) sends += ir::is_send(action.kind());
    const auto log = std::make_shared<comms::CallLog>();
    std::barrier made(2);
    expect_no_errors(2, [&](int rank, comms::World& plain) {
      comms::World world = plain.wrapped(
          [&](const comms::BackendPtr& backend) { return comms::record(backend, log); });
      ExecutorHere executor(program,
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
// gradients are so marked; and NCCL has no complex dtypes.
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
    ExecutorHere executor(
        program,
        stages_of(
            program, rank,
            [&](int stage, const Tensors& in) { return Tensors{apply(stage, in[0], weight)}; }),
        world, {.loss = [&](const Tensors& outputs) { return loss_of(outputs[0]); }});
    executor.step({.inputs = {x.to(tests::here())}});
    EXPECT_TRUE(at::allclose(weight.grad().cpu(), expected[rank].grad(),
                             tests::has_hosts_bits() ? 0 : 1e-6, 0))
        << weight.grad().cpu() << expected[rank].grad();
  });
}

class SharedLock final : public StepLock {
 public:
  void lock() override {
    if (is_mine()) return;
    mutex_.lock();
    owner_ = std::this_thread::get_id();
    ++num_locks_;
  }
  void unlock() override {
    if (!is_mine()) return;
    owner_ = std::thread::id();
    mutex_.unlock();
  }
  bool is_mine() const { return owner_ == std::this_thread::get_id(); }
  int num_locks() const { return num_locks_; }

 private:
  std::mutex mutex_;
  std::atomic<std::thread::id> owner_;
  int num_locks_ = 0;
};

// All ranks share one, as threads of one interpreter do. A rank that kept it while it waits would
// keep the other from computing what it waits for.
TEST(Executor, ALockIsTakenForForwardsAndReleasedInWaits) {
  const ir::Program program = named("ZB-H1", 2, 4);
  for (const bool dynamic : {false, true}) {
    const auto lock = std::make_shared<SharedLock>();
    std::atomic<int> num_calls = 0;
    expect_no_errors(2, [&](int rank, comms::World& world) {
      const auto stages = stages_of(program, rank, [&](int, const Tensors& in) {
        EXPECT_TRUE(lock->is_mine());
        ++num_calls;
        return Tensors{doubled(in[0])};
      });
      const auto loss = [&](const Tensors& outputs) {
        EXPECT_TRUE(lock->is_mine());
        return sum_of(outputs);
      };
      ExecutorHere executor(program, stages, world,
                            {.loss = loss, .dynamic_shapes = dynamic, .lock = lock});
      for (int step = 0; step < 2; ++step) {
        executor.step({.inputs = {at::ones({8}, tests::here())}});
        EXPECT_FALSE(lock->is_mine());
        executor.eval({.inputs = {at::ones({8}, tests::here())}});
        EXPECT_FALSE(lock->is_mine());
      }
    });
    EXPECT_EQ(num_calls, 2 * 2 * 2 * 4);
  }
}

// The backward of the loss is a part of this stage's, or runs before it.
class LocksSeen final : public Stage {
 public:
  LocksSeen(std::shared_ptr<SharedLock> lock, bool unlocks, bool joins)
      : lock_(std::move(lock)), unlocks_(unlocks), joins_(joins) {}
  Tensors forward(int microbatch, const Tensors& inputs) override {
    return stage_.forward(microbatch, inputs);
  }
  Tensors backward(int microbatch, Tensors output_grads) override {
    EXPECT_EQ(lock_->is_mine(), joins_);
    if (unlocks_) lock_->unlock();
    return stage_.backward(microbatch, std::move(output_grads));
  }
  Tensors backward_input(int, Tensors) override { return {}; }
  void backward_weight(int) override {}
  bool joins_loss() const override { return joins_; }
  void set_loss(int microbatch, const at::Tensor& loss) override {
    stage_.set_loss(microbatch, loss);
  }
  void clear() override { stage_.clear(); }

 private:
  const std::shared_ptr<SharedLock> lock_;
  const bool unlocks_, joins_;
  ModuleStage stage_{[](const Tensors& inputs) { return Tensors{doubled(inputs[0])}; }};
};

// Each time it is taken may cost a time slice of another thread.
TEST(Executor, ALockIsKeptFromForwardToForward) {
  const ir::Program program = named("1F1B", 1, 4);
  const auto locks_of_step = [&](bool unlocks, bool joins) {
    const auto lock = std::make_shared<SharedLock>();
    expect_no_errors(1, [&](int, comms::World& world) {
      const auto loss = [&](const Tensors& outputs) {
        outputs[0].register_hook([&](const at::Tensor&) {
          // Autograd has a thread of its own for a device.
          EXPECT_EQ(lock->is_mine(), joins && !unlocks && !tests::is_on_device());
          return at::Tensor();
        });
        return sum_of(outputs);
      };
      ExecutorHere executor(program, {{0, {std::make_shared<LocksSeen>(lock, unlocks, joins)}}},
                            world, {.loss = loss, .lock = lock});
      executor.step({.inputs = {at::ones({8}, tests::here())}});
    });
    return lock->num_locks();
  };
  EXPECT_EQ(locks_of_step(/*unlocks=*/false, /*joins=*/true), 1);
  EXPECT_EQ(locks_of_step(/*unlocks=*/true, /*joins=*/true), 4);
  EXPECT_EQ(locks_of_step(/*unlocks=*/false, /*joins=*/false), 4);
}

TEST(Executor, ALockIsReleasedAfterAFailure) {
  const ir::Program program = named("1F1B", 1, 4);
  const auto lock = std::make_shared<SharedLock>();
  expect_no_errors(1, [&](int rank, comms::World& world) {
    const auto stages = stages_of(program, rank, [&](int, const Tensors&) -> Tensors {
      throw std::runtime_error("out of luck");
    });
    ExecutorHere executor(program, stages, world, {.loss = sum_of, .lock = lock});
    EXPECT_THROW(executor.step({.inputs = {at::ones({8}, tests::here())}}), StepError);
    EXPECT_FALSE(lock->is_mine());
  });
  EXPECT_EQ(lock->num_locks(), 1);
}

// --------------------------------------------------------------------------------- user functions

TEST(Executor, FunctionsReplaceActions) {
  const ir::Program program = named("DualPipeV", 2, 8);
  expect_no_errors(2, [&](int rank, comms::World& world) {
    const at::Tensor weight = at::ones({1}, tests::here()).set_requires_grad(true);
    ExecutorHere executor(
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

}  // namespace
}  // namespace pipewright::executor
