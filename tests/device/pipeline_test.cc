// Pipelines on the test device, also of sharded and of replicated stages: the results of the model
// without a pipeline, no race (checks.cc), and no host synchronisation within a step.
// tools/mutations removes waits and stashes, and expects this test to notice.
#include "tests/support/training/pipeline.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/optim/adamw.h>

#include <algorithm>
#include <barrier>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "pipewright/ddp/replicate.h"
#include "pipewright/executor/module_stage.h"
#include "pipewright/fsdp/fully_shard.h"
#include "pipewright/modules/data_parallel.h"
#include "pipewright/schedules/registry.h"
#include "tests/device/device.h"
#include "tests/device/no_host_sync.h"
#include "tests/executor/models.h"
#include "tests/fsdp/sharding.h"
#include "tests/support/ranks/ground.h"
#include "tests/support/ranks/ranks.h"
#include "tests/support/recording/recording_backend.h"

namespace pipewright {
namespace {

using executor::ModelKind;
using tests::expect_no_host_sync;
using tests::PipelineCase;

const schedules::ScheduleSpec& schedule(const char* name) {
  return *schedules::find_schedule(name);
}

TEST(Pipeline, TrainsLikeTheModelWithoutIt) {
  for (const char* name : {"1F1B", "Interleaved1F1B", "ZBVZeroBubble", "DualPipeV"}) {
    const schedules::Shape shape{2, schedules::default_stages(schedule(name), 2), 4};
    for (const ModelKind kind : {ModelKind::kMlp, ModelKind::kTransformer}) {
      // With and without WAITs.
      for (const ir::Torch torch : {ir::Torch::k2_11, ir::Torch::k2_15}) {
        const ir::Program program = executor::make_program(schedule(name), shape, {.torch = torch});
        std::vector<comms::World> worlds = tests::make_worlds(2);
        executor::Trained trained;
        ASSERT_EQ(executor::train_threads(program, kind, 8, worlds, &trained), "") << name;
        EXPECT_EQ(compare(train_reference(executor::make_model(kind, shape.stages, 8), 4), trained,
                          program, executor::all_stages(program)),
                  "")
            << name;
      }
    }
  }
}

// A backend that can group operations moves all tensors of a SEND at once.
TEST(Pipeline, TheTensorsOfASendAreOneOperation) {
  constexpr int kMicrobatches = 4, kSteps = 2;
  const ir::Program program = executor::make_program(schedule("1F1B"), {2, 2, kMicrobatches});
  std::vector<comms::World> worlds = tests::make_worlds(2);
  const auto log = std::make_shared<comms::CallLog>();
  EXPECT_EQ(
      tests::run_ranks(
          2,
          [&](int rank) {
            comms::World world = worlds[static_cast<size_t>(rank)].wrapped(
                [&](const comms::BackendPtr& backend) { return comms::record(backend, log); });
            const at::Tensor weight =
                at::full({1}, 2.0 + rank, tests::here()).set_requires_grad(true);
            std::map<int, executor::LocalStage> stages;
            stages[rank].stage =
                std::make_shared<executor::ModuleStage>([=](const executor::Tensors& in) {
                  if (rank == 1) return executor::Tensors{(in[0] + in[1] * in[2]) * weight};
                  return executor::Tensors{in[0] * weight, in[0] + weight, in[0] * 3};
                });
            executor::Executor executor(
                program, stages, world,
                {.loss = [](const executor::Tensors& out) { return out[0].sum(); },
                 .scale_grads = false,
                 .device = tests::here()});
            for (int step = 0; step < kSteps; ++step)
              executor.step({.inputs = {at::ones({kMicrobatches}, tests::here())}});
            // The sum of (w0 + (1 + w0) * 3) * w1 over microbatches and steps.
            EXPECT_EQ(weight.grad().cpu().item<float>(),
                      kMicrobatches * kSteps * (rank == 0 ? 4 * 3 : 2 + 3 * 3));
          }),
      "");
  // Forward and backward, at both ends; in the backward, two of three tensors have a gradient.
  EXPECT_EQ(log->count("endCoalescing"), 2 * 2 * kMicrobatches * kSteps);
  const int64_t connecting = 2;
  EXPECT_EQ(log->count("send"), connecting + (3 + 2) * kMicrobatches * kSteps);
}

// Only the SEND has the output by then: the gradient that would show that it was received is not
// awaited yet.
TEST(Pipeline, AWaitFreesWhatItsSendHasSent) {
  const ir::Program program =
      executor::make_program(schedule("GPipe"), {.ranks = 2, .stages = 2, .microbatches = 4},
                             {.max_outstanding_sends = 1});
  std::vector<comms::World> worlds = tests::make_worlds(2);
  int waits = 0;
  EXPECT_EQ(
      tests::run_ranks(
          2,
          [&](int rank) {
            const at::Tensor weight = at::full({1}, 2.0, tests::here()).set_requires_grad(true);
            std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> outputs;
            std::map<int, executor::LocalStage> stages;
            stages[rank].stage =
                std::make_shared<executor::ModuleStage>([&](const executor::Tensors& in) {
                  const at::Tensor out = in[0] * weight;
                  outputs.push_back(out.storage().getWeakStorageImpl());
                  return executor::Tensors{out};
                });
            executor::Executor executor(
                program, stages, worlds[static_cast<size_t>(rank)],
                {.loss = [](const executor::Tensors& out) { return out[0].sum(); },
                 .device = tests::here()});
            executor.set_function(
                ir::ActionKind::kWaitSendF, [&](const executor::ActionContext& context) {
                  context.run_default();
                  const auto sent = static_cast<size_t>(context.action().parts()[0].microbatch());
                  EXPECT_TRUE(outputs[sent].expired()) << sent;
                  ++waits;
                });
            executor.step({.inputs = {at::ones({4}, tests::here())}});
          }),
      "");
  EXPECT_EQ(waits, 4);
}

// The most bytes that each of two ranks needs in a step of `microbatches`, whose results are of
// kResult bytes each, on a device that has run nothing when the host has issued the whole step.
constexpr int64_t kResult = 16 << 10;
std::vector<int64_t> peaks(int microbatches, bool trains) {
  testdevice::seed(0);
  const ir::Program program = executor::make_program(schedule("1F1B"), {2, 2, microbatches});
  std::vector<comms::World> worlds = tests::make_worlds(2);
  std::vector<int64_t> peaks(2);
  std::barrier all(2);
  EXPECT_EQ(
      tests::run_ranks(
          2,
          [&](int rank) {
            const at::Tensor weight =
                at::ones({kResult / 4}, tests::here()).set_requires_grad(true);
            std::map<int, executor::LocalStage> stages;
            stages[rank].stage =
                std::make_shared<executor::ModuleStage>([=](const executor::Tensors& in) {
                  if (rank == 0) return executor::Tensors{in[0].unsqueeze(1) * weight};
                  return executor::Tensors{(in[0] * weight).sum()};
                });
            executor::Executor executor(
                program, stages, worlds[static_cast<size_t>(rank)],
                {.loss = [](const executor::Tensors& out) { return out[0]; },
                 .device = tests::here()});
            const executor::Batch batch = {.inputs = {at::ones({microbatches}, tests::here())}};
            const auto step = [&] { trains ? executor.step(batch) : executor.eval(batch); };
            step();  // learns shapes
            testdevice::synchronize(rank);
            testdevice::restart_peak(rank);
            expect_no_host_sync(all, step);
            peaks[static_cast<size_t>(rank)] = testdevice::peak_bytes(rank);
          }),
      "");
  return peaks;
}

// However far the host is ahead, a device keeps the tensors of at most 16 SENDs, and what it has
// received until it has used it.
TEST(Pipeline, MemoryDoesNotGrowWithTheMicrobatches) {
  for (const bool trains : {true, false}) {
    const std::vector<int64_t> few = peaks(32, trains), many = peaks(64, trains);
    for (const size_t rank : {0, 1})
      EXPECT_LT(many[rank], few[rank] + kResult)
          << (trains ? "step" : "eval") << " on rank " << rank;
  }
}

// A copy of its input. On the device, both passes have a kernel with a name.
struct Named : torch::autograd::Function<Named> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& input,
                            const std::string& forward, const std::string& backward) {
    context->saved_data["backward"] = backward;
    testdevice::launch(forward, {input}, {}, [] {});
    return input.clone();
  }
  static torch::autograd::tensor_list backward(torch::autograd::AutogradContext* context,
                                               const torch::autograd::tensor_list& grads) {
    testdevice::launch(context->saved_data["backward"].toStringRef(), {grads[0]}, {}, [] {});
    return {grads[0].clone(), {}, {}};
  }
};

std::string name_of(ir::ActionPart part) {
  const bool is_forward = part.kind() == ir::ActionKind::kForward;
  return (is_forward ? "F" : "B") + std::to_string(part.stage()) + "." +
         std::to_string(part.microbatch());
}

// How many compounds of a step ran the second part, or a piece of it, before the first.
int overlapping(uint64_t seed, bool overlaps) {
  const ir::Program program = executor::make_program(schedule("DualPipeV"), {2, 4, 8});
  testdevice::seed(seed);
  std::vector<comms::World> worlds = tests::make_worlds(2);
  EXPECT_EQ(tests::run_ranks(
                2,
                [&](int rank) {
                  std::map<int, executor::LocalStage> stages;
                  for (const int stage : program.placement.stages_of(rank)) {
                    const at::Tensor weight =
                        at::full({1}, 1.0, tests::here()).set_requires_grad(true);
                    stages[stage].stage = std::make_shared<executor::ModuleStage>(
                        [=, forwards = 0](const executor::Tensors& in) mutable {
                          using enum ir::ActionKind;
                          const int microbatch = forwards++;
                          return executor::Tensors{
                              Named::apply(in[0] * weight, name_of({kForward, stage, microbatch}),
                                           name_of({kBackward, stage, microbatch}))};
                        });
                  }
                  executor::Executor executor(
                      program, stages, worlds[static_cast<size_t>(rank)],
                      {.loss = [](const executor::Tensors& out) { return out[0].sum(); },
                       .device = tests::here(),
                       .overlap_compounds = overlaps});
                  const auto result = executor.step({.inputs = {at::ones({8}, tests::here())}});
                  at::Tensor sum;
                  for (const at::Tensor& loss : result.losses)
                    sum = sum.defined() ? sum + loss : loss.clone();
                }),
            "");
  testdevice::drain();
  EXPECT_EQ(testdevice::races(), std::vector<std::string>());
  int count = 0;
  for (int rank = 0; rank < 2; ++rank) {
    const std::vector<std::string> order = testdevice::execution_order(rank);
    for (const ir::Action& action : program.rows[static_cast<size_t>(rank)]) {
      if (!action.is_compound()) continue;
      const auto first = std::ranges::find(order, name_of(action.parts()[0]));
      const auto second = std::ranges::find(order, name_of(action.parts()[1]));
      EXPECT_TRUE(first != order.end() && second != order.end());
      count += second < first;
    }
  }
  return count;
}

TEST(Pipeline, ThePartsOfCompoundsOverlap) {
  int count = 0;
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    count += overlapping(seed, true);
    EXPECT_EQ(overlapping(seed, false), 0);
  }
  EXPECT_GT(count, 5);
}

TEST(Pipeline, DoesNotSynchronizeTheHost) {
  for (const char* name : {"1F1B", "Interleaved1F1B", "ZBVZeroBubble", "DualPipeV"}) {
    const schedules::Shape shape{2, schedules::default_stages(schedule(name), 2), 4};
    const ir::Program program = executor::make_program(schedule(name), shape);
    std::vector<comms::World> worlds = tests::make_worlds(2);
    std::barrier all(2);
    EXPECT_EQ(tests::run_ranks(2,
                               [&](int rank) {
                                 const auto model =
                                     executor::make_model(ModelKind::kTransformer, shape.stages, 8);
                                 std::map<int, executor::LocalStage> stages;
                                 std::vector<at::Tensor> weights;
                                 for (const int stage : program.placement.stages_of(rank)) {
                                   const auto index = static_cast<size_t>(stage);
                                   stages[stage].stage =
                                       std::make_shared<executor::ModuleStage>(model.stages[index]);
                                   for (const at::Tensor& weight : model.weights[index])
                                     weights.push_back(weight);
                                 }
                                 executor::Executor executor(
                                     program, stages, worlds[static_cast<size_t>(rank)],
                                     {.loss = model.loss, .device = tests::here()});
                                 torch::optim::AdamW optimizer(weights);
                                 const auto step = [&] {
                                   optimizer.zero_grad();
                                   executor.step({model.inputs, {}, model.targets});
                                   optimizer.step();
                                   executor.eval({model.inputs, {}, model.targets});
                                 };
                                 step();  // learns shapes
                                 expect_no_host_sync(all, step);
                               }),
              "")
        << name;
  }
}

at::Tensor part_of(const at::Tensor& whole, int copy) { return tests::part_of(whole, copy, 2); }

std::shared_ptr<modules::DataParallel> shard(const std::shared_ptr<tests::Layers>& stage,
                                             const comms::BackendPtr& group) {
  std::vector<std::shared_ptr<fsdp::Sharded>> units;
  for (const auto& layer : stage->layers()) units.push_back(fsdp::fully_shard(*layer, group));
  return fsdp::fully_shard(*stage, group)->data_parallel();
}

TEST(PipelineOfShardedStages, TrainsLikeTheModelWithoutIt) {
  for (const char* name : {"1F1B", "ZBVZeroBubble", "DualPipeV"}) {
    const PipelineCase pipeline{
        .schedule = &schedule(name),
        .reduce_every = 2,
        .steps = 2,
        .layers = {.checkpointed = true,
                   .call = [](const std::shared_ptr<tests::Layer>& layer, const at::Tensor& x) {
                     return modules::forward(layer, x);
                   }}};
    expect_trained(train_reference(pipeline), train_pipeline(pipeline, shard), part_of);
  }
}

// Sharded along their last dimension, gradients are copied before they are reduced.
TEST(PipelineOfShardedStages, CompoundsOfStagesShardedAlongTheLastDimension) {
  const auto last = [](const at::Tensor& parameter) { return parameter.dim() - 1; };
  const tests::Wrap wrap = [&](const std::shared_ptr<tests::Layers>& stage,
                               const comms::BackendPtr& group) {
    const fsdp::Options options = {.shard_placement_fn = last};
    std::vector<std::shared_ptr<fsdp::Sharded>> units;
    for (const auto& layer : stage->layers())
      units.push_back(fsdp::fully_shard(*layer, group, options));
    return fsdp::fully_shard(*stage, group, options)->data_parallel();
  };
  const PipelineCase pipeline{.schedule = &schedule("DualPipeV"), .reduce_every = 2, .steps = 2};
  expect_trained(train_reference(pipeline), train_pipeline(pipeline, wrap),
                 [&](const at::Tensor& whole, int copy) {
                   return tests::part_of(whole, copy, 2, last(whole));
                 });
}

// Both streams wait for the parameters of a compound.
TEST(PipelineOfShardedStages, CompoundsOfAStageThatIsGathered) {
  using enum ir::ActionKind;
  ir::Program program;
  program.placement = ir::Placement::loop(1, 1);
  program.num_microbatches = tests::kPipelineMicrobatches;
  ir::Row& row = program.rows.emplace_back();
  row = {ir::Action(kUnshard, 0), ir::Action(kForward, 0, 0), ir::Action(kReshard, 0)};
  for (int m = 1; m < program.num_microbatches; ++m) {
    row.emplace_back(kUnshard, 0);
    row.push_back(ir::Action::overlap({kForward, 0, m}, {kBackward, 0, m - 1}));
    row.emplace_back(kReshard, 0);
  }
  row.emplace_back(kUnshard, 0);
  row.emplace_back(kBackward, 0, program.num_microbatches - 1);
  row.emplace_back(kReshard, 0);
  row.emplace_back(kReduceGrad, 0);
  const PipelineCase pipeline{.program = program, .steps = 2};
  expect_trained(train_reference(pipeline), train_pipeline(pipeline, shard), part_of);
}

TEST(PipelineOfReplicatedStages, TrainsLikeTheModelWithoutIt) {
  const tests::Wrap wrap = [](const std::shared_ptr<tests::Layers>& stage,
                              const comms::BackendPtr& group) {
    return ddp::replicate(*stage, group, {.bucket_cap_mb = 0.001, .first_bucket_cap_mb = 0.001})
        ->data_parallel();
  };
  for (const char* name : {"1F1B", "ZBVZeroBubble", "DualPipeV"}) {
    const PipelineCase pipeline{.schedule = &schedule(name), .reduce_every = 2, .steps = 2};
    expect_trained(train_reference(pipeline), train_pipeline(pipeline, wrap),
                   [](const at::Tensor& whole, int) { return whole; });
  }
}

}  // namespace
}  // namespace pipewright
