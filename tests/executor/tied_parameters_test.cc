// Tied embeddings over pipeline stages: gradients and weights are those of a model without a
// pipeline, in which one tensor is both embedding and output layer.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>

#include <stdexcept>
#include <utility>

#include "pipewright/comms/mesh.h"
#include "pipewright/ddp/replicate.h"
#include "pipewright/executor/executor.h"
#include "pipewright/executor/module_stage.h"
#include "pipewright/fsdp/fully_shard.h"
#include "pipewright/modules/distribution.h"
#include "pipewright/schedules/registry.h"
#include "tests/executor/models.h"
#include "tests/support/ranks/ground.h"
#include "tests/support/ranks/ranks.h"

namespace pipewright::executor {
namespace {

namespace nn = torch::nn;

constexpr int64_t kVocabulary = 11, kWidth = 6, kTokens = 5;
constexpr int kMicrobatches = 4, kStepsToAccumulate = 2;

at::Tensor values(at::IntArrayRef sizes, double phase) {
  return at::arange(c10::multiply_integers(sizes), at::kDouble)
      .mul(0.7)
      .add(phase)
      .sin()
      .mul(0.5)
      .view(sizes)
      .to(tests::here());
}
at::Tensor embedding_values() { return values({kVocabulary, kWidth}, 0); }
at::Tensor layer_values(int stage) { return values({kWidth, kWidth}, 1 + stage); }

// [rows, kTokens], of one copy of the pipeline in one executor step.
at::Tensor tokens(int step, int copy, int shift) {
  return (at::arange(2 * kMicrobatches * kTokens) * (3 + step) + 5 * copy + shift)
      .remainder(kVocabulary)
      .view({2 * kMicrobatches, kTokens})
      .to(tests::here());
}

at::Tensor loss_of(const at::Tensor& logits, const at::Tensor& targets) {
  return at::cross_entropy_loss(logits.flatten(0, 1), targets.flatten());
}

// tanh(x W), with an embedding before it and an output layer after it.
struct StageModule : nn::Module {
  StageModule(int stage, bool first, bool last) {
    layer = register_parameter("layer", layer_values(stage));
    // The output layer begins with other values than the embedding: tie() makes them equal.
    if (first) tokens = register_parameter("tokens", embedding_values());
    if (last) output = register_parameter("output", at::zeros_like(embedding_values()));
  }
  at::Tensor forward(const at::Tensor& input) {
    at::Tensor x = tokens.defined() ? at::embedding(tokens, input) : input;
    x = at::tanh(at::matmul(x, layer));
    return output.defined() ? at::linear(x, output) : x;
  }
  at::Tensor layer, tokens, output;
};

struct Trained {
  at::Tensor embedding, embedding_grad;
  std::vector<at::Tensor> layers;
};

constexpr int kOptimizerSteps = 3;

Trained train_alone(int stages, int copies) {
  at::Tensor embedding = embedding_values().requires_grad_();
  std::vector<at::Tensor> all = {embedding};
  for (int stage = 0; stage < stages; ++stage) all.push_back(layer_values(stage).requires_grad_());
  torch::optim::AdamW optimizer(all, torch::optim::AdamWOptions(0.05));
  for (int step = 0; step < kOptimizerSteps * kStepsToAccumulate; ++step) {
    if (step % kStepsToAccumulate == 0) optimizer.zero_grad();
    for (int copy = 0; copy < copies; ++copy) {
      at::Tensor x = at::embedding(embedding, tokens(step, copy, 0));
      for (int stage = 0; stage < stages; ++stage)
        x = at::tanh(at::matmul(x, all[1 + static_cast<size_t>(stage)]));
      (loss_of(at::linear(x, embedding), tokens(step, copy, 2)) / copies).backward();
    }
    if (step % kStepsToAccumulate == kStepsToAccumulate - 1) optimizer.step();
  }
  return {embedding.detach(), embedding.grad(), {all.begin() + 1, all.end()}};
}

enum class Parallel { kNone, kReplicate, kShard, kMixed };  // kMixed: sharded, computing in fp32

std::shared_ptr<modules::DataParallel> wrap(StageModule& module, Parallel parallel,
                                            comms::Mesh& mesh) {
  if (parallel == Parallel::kReplicate)
    return ddp::replicate(module, mesh.group({"dp"}))->data_parallel();
  if (parallel == Parallel::kShard)
    return fsdp::fully_shard(module, mesh.group({"dp"}))->data_parallel();
  if (parallel == Parallel::kMixed)
    return fsdp::fully_shard(module, mesh.group({"dp"}),
                             {.mixed_precision = {.param_dtype = at::kFloat}})
        ->data_parallel();
  return nullptr;
}

// `fails`: a step on the way is repeated after a failure.
void train_rank(const ir::Program& program, Parallel parallel, int copies, comms::World& world,
                const Trained& expected, bool fails) {
  const ir::Placement& placement = program.placement;
  const int last = placement.num_stages() - 1;
  comms::Mesh mesh(world, {{"pp", placement.num_ranks()}, {"dp", copies}});
  std::map<int, std::shared_ptr<StageModule>> all;
  std::map<int, LocalStage> stages;
  for (const int stage : placement.stages_of(mesh.coordinate("pp"))) {
    all[stage] = std::make_shared<StageModule>(stage, stage == 0, stage == last);
    stages[stage] = {make_stage(all[stage]), wrap(*all[stage], parallel, mesh)};
  }
  const auto tied = std::make_shared<modules::TiedParameters>(world);
  std::vector<at::Tensor> embeddings, parameters;
  if (all.contains(0)) embeddings.push_back(all[0]->tokens);
  if (all.contains(last)) embeddings.push_back(all[last]->output);
  const std::vector<int> pipeline = mesh.ranks({"pp"});
  const auto ranks_of = [&](std::initializer_list<int> of_stages) {
    std::vector<int> ranks;
    for (const int stage : of_stages) {
      for (const int rank : placement.ranks_of(stage))
        ranks.push_back(pipeline[static_cast<size_t>(rank)]);
    }
    return ranks;
  };
  if (!embeddings.empty()) tied->tie("tokens", ranks_of({0, last}), embeddings);
  if (placement.num_replicas() > 1) {
    for (const auto& [stage, module] : all) tied->tie("layer", ranks_of({stage}), {module->layer});
  }
  for (const auto& [stage, module] : all) {
    for (const at::Tensor& parameter : module->parameters()) parameters.push_back(parameter);
  }
  bool throws = false;
  const auto loss = [&throws](const Tensors& outputs, const Tensors& targets) {
    if (std::exchange(throws, false)) throw std::runtime_error("out of luck");
    return loss_of(outputs[0], targets[0]);
  };
  Executor executor(program, stages, world,
                    {.loss = loss, .device = tests::here(), .ranks = pipeline, .tied = tied});
  torch::optim::AdamW optimizer(parameters, torch::optim::AdamWOptions(0.05));
  const int copy = mesh.coordinate("dp");
  for (int step = 0; step < kOptimizerSteps * kStepsToAccumulate; ++step) {
    if (step % kStepsToAccumulate == 0) optimizer.zero_grad();
    const Batch batch{.inputs = {tokens(step, copy, 0)}, .targets = {tokens(step, copy, 2)}};
    if (fails && step == kStepsToAccumulate) {
      throws = true;
      // On a device, step() of a rank may return before another rank has failed in it.
      const auto step_on_all = [&] {
        executor.step(batch);
        executor.confirm();
      };
      EXPECT_THROW(step_on_all(), StepError);
      throws = false;
      executor.reset();
      optimizer.zero_grad();
    }
    executor.step(batch);
    executor.eval({.inputs = {tokens(step, copy, 1)}});  // leaves gradients alone
    if (step % kStepsToAccumulate == kStepsToAccumulate - 1) optimizer.step();
  }
  const bool is_mixed = parallel == Parallel::kMixed;
  const auto expect_near = [&](const at::Tensor& got, const at::Tensor& wanted) {
    EXPECT_TRUE(at::allclose(got.cpu(), wanted, is_mixed ? 1e-4 : 1e-9, is_mixed ? 1e-5 : 1e-12))
        << (got.cpu() - wanted).abs().max();
    EXPECT_FALSE(is_mixed && at::equal(got.cpu(), wanted));  // something was in fp32
  };
  for (const at::Tensor& embedding : embeddings) {
    expect_near(modules::full_tensor(embedding), expected.embedding);
    expect_near(modules::full_tensor(embedding, embedding.grad()), expected.embedding_grad);
  }
  for (const auto& [stage, module] : all)
    expect_near(modules::full_tensor(module->layer), expected.layers[static_cast<size_t>(stage)]);
}

void expect_trained(const schedules::ScheduleSpec& spec, int pp, Parallel parallel, bool fails,
                    bool recomputes = false) {
  at::set_num_threads(1);
  const int copies = parallel == Parallel::kNone ? 1 : 2;
  const schedules::Shape shape{pp, schedules::default_stages(spec, pp), kMicrobatches};
  if (schedules::shape_error(spec, shape)) return;
  ir::Program program = make_program(spec, shape);
  for (int stage = 0; recomputes && stage < shape.stages; ++stage)
    program.recompute.push_back(stage);
  const Trained expected = train_alone(shape.stages, copies);
  std::vector<comms::World> worlds = tests::make_worlds(pp * copies);
  EXPECT_EQ(tests::run_ranks(pp * copies,
                             [&](int rank) {
                               comms::World& world = worlds[static_cast<size_t>(rank)];
                               train_rank(program, parallel, copies, world, expected, fails);
                             }),
            "")
      << "pp " << pp;
}

class TiedEmbeddings
    : public testing::TestWithParam<std::tuple<const schedules::ScheduleSpec*, Parallel>> {};

TEST_P(TiedEmbeddings, EqualsTheModelWithoutAPipeline) {
  const auto [spec, parallel] = GetParam();
  for (const int pp : {1, 2, 3}) {
    // On the test device an operator takes about 20 times as long.
    if (tests::is_on_device() && pp != 2) continue;
    expect_trained(*spec, pp, parallel, /*fails=*/false);
  }
}

TEST(TiedParameters, GoesOnAfterAFailure) {
  for (const char* name : {"1F1B", "ZBV"}) {
    for (const Parallel parallel : {Parallel::kNone, Parallel::kReplicate, Parallel::kShard})
      expect_trained(*schedules::find_schedule(name), 2, parallel, /*fails=*/true);
  }
}

// Two replicas of the model, whose gradients are added up beside those of the shards.
TEST(TiedParameters, ReplicasMayRecomputeAndComputeInLowerPrecision) {
  for (const char* name : {"Chimera", "DualPipe"}) {
    SCOPED_TRACE(name);
    const schedules::ScheduleSpec& spec = *schedules::find_schedule(name);
    expect_trained(spec, 2, Parallel::kMixed, /*fails=*/false);
    for (const Parallel parallel : {Parallel::kNone, Parallel::kReplicate, Parallel::kShard})
      expect_trained(spec, 2, parallel, /*fails=*/false, /*recomputes=*/true);
  }
}

std::string name_of(const schedules::ScheduleSpec* spec, Parallel parallel) {
  std::string name(spec->name);
  std::erase_if(name, [](char c) { return c == '-'; });
  switch (parallel) {
    case Parallel::kNone:
      return name;
    case Parallel::kReplicate:
      return name + "Replicated";
    case Parallel::kShard:
      return name + "Sharded";
    case Parallel::kMixed:
      return name + "Mixed";
  }
  return name;
}

INSTANTIATE_TEST_SUITE_P(
    Schedules, TiedEmbeddings,
    testing::Combine(testing::ValuesIn(schedules::all_schedules().begin(),
                                       schedules::all_schedules().end()),
                     testing::Values(Parallel::kNone, Parallel::kReplicate, Parallel::kShard)),
    [](const auto& of) { return name_of(std::get<0>(of.param), std::get<1>(of.param)); });

}  // namespace
}  // namespace pipewright::executor
