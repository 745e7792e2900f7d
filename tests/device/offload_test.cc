// Stages that offload: training is that of the model without a pipeline, in every order of
// execution and without a race; memory is what the simulator predicts.
#include "pipewright/executor/offload.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <barrier>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "pipewright/executor/module_stage.h"
#include "pipewright/fsdp/fully_shard.h"
#include "pipewright/modules/forward.h"
#include "pipewright/schedule/compile/compile.h"
#include "pipewright/schedules/registry.h"
#include "tests/device/device.h"
#include "tests/device/no_host_sync.h"
#include "tests/executor/models.h"
#include "tests/fsdp/sharding.h"
#include "tests/support/ranks/ground.h"
#include "tests/support/ranks/ranks.h"
#include "tests/support/training/pipeline.h"

namespace pipewright {
namespace {

using executor::Executor;
using executor::LocalStage;
using executor::ModelKind;
using executor::ModuleStage;
using executor::Tensors;

ir::Program program_of(const char* name, const schedules::Shape& shape, std::vector<int> offload,
                       std::vector<int> recompute = {}) {
  ir::Program program = executor::make_program(*schedules::find_schedule(name), shape);
  program.offload = std::move(offload);
  program.recompute = std::move(recompute);
  return program;
}

// The first test of the process: LibTorch has started the threads of its own engine then.
TEST(Offload, AfterABackwardWithoutIt) {
  at::ones({1}).set_requires_grad(true).sum().backward();
  const ir::Program program = program_of("1F1B", {2, 2, 4}, {0, 1});
  std::vector<comms::World> worlds = tests::make_worlds(2);
  executor::Trained trained;
  EXPECT_EQ(executor::train_threads(program, ModelKind::kMlp, 8, worlds, &trained), "");
}

TEST(Offload, TrainsLikeTheModelWithoutIt) {
  const ir::Program programs[] = {
      program_of("GPipe", {2, 2, 4}, {0, 1}),
      program_of("1F1B", {3, 3, 5}, {0, 1}),
      program_of("Interleaved1F1B", {2, 4, 4}, {0, 3}),
      program_of("ZBV", {2, 4, 4}, {0, 1, 2, 3}),  // I and W
      program_of("DualPipeV", {2, 4, 6}, {0, 2}),  // compounds
      program_of("1F1B", {3, 3, 5}, {0, 1}, {2}),  // beside one that recomputes
  };
  for (const ir::Program& program : programs) {
    SCOPED_TRACE(program.name);
    const int ranks = program.placement.num_ranks(), stages = program.placement.num_stages();
    const int64_t batch = 2 * program.num_microbatches;
    for (const ModelKind kind : {ModelKind::kMlp, ModelKind::kTransformer}) {
      std::vector<comms::World> worlds = tests::make_worlds(ranks);
      executor::Trained trained;
      ASSERT_EQ(executor::train_threads(program, kind, batch, worlds, &trained), "");
      EXPECT_EQ(compare(train_reference(executor::make_model(kind, stages, batch),
                                        program.num_microbatches),
                        trained, program, executor::all_stages(program)),
                "");
    }
  }
}

// Stages that save 2 kLayers results of kResult bytes each per microbatch.
constexpr int64_t kResult = 4 << 10;
constexpr int kLayers = 100;

struct Measured {
  std::vector<int64_t> peaks;  // of each rank, beside what is there before the step
  std::vector<at::Tensor> grads;
};

Measured train(const ir::Program& program) {
  testdevice::seed(0);
  const int ranks = program.placement.num_ranks(), microbatches = program.num_microbatches;
  std::vector<comms::World> worlds = tests::make_worlds(ranks);
  Measured measured{std::vector<int64_t>(static_cast<size_t>(ranks)),
                    std::vector<at::Tensor>(static_cast<size_t>(ranks))};
  std::barrier all(ranks);
  EXPECT_EQ(
      tests::run_ranks(
          ranks,
          [&](int rank) {
            const auto index = static_cast<size_t>(rank);
            const at::Tensor weight = at::full({1}, 0.9, tests::here()).set_requires_grad(true);
            const auto forward = [=](const Tensors& in) -> Tensors {
              at::Tensor x = in[0].expand({kResult / 4}) * weight;
              for (int layer = 0; layer < kLayers; ++layer) x = at::sin(x) * weight;
              return {x.sum().view({1})};
            };
            const auto stage = std::make_shared<ModuleStage>(forward);
            stage->set_least_offload(kResult);
            Executor executor(program, {{rank, {stage}}}, worlds[index],
                              {.loss = [](const Tensors& out) { return out[0].mean(); },
                               .device = tests::here()});
            const executor::Batch batch = {.inputs = {at::ones({microbatches}, tests::here())}};
            const auto step = [&] { executor.step(batch); };
            step();  // learns shapes
            testdevice::synchronize(rank);
            testdevice::restart_peak(rank);
            const int64_t before = testdevice::peak_bytes(rank);
            tests::expect_no_host_sync(all, step);
            measured.peaks[index] = testdevice::peak_bytes(rank) - before;
            measured.grads[index] = weight.grad().cpu();
          }),
      "");
  return measured;
}

TEST(Offload, MemoryIsWhatTheSimulatorPredicts) {
  const schedules::Shape shape{2, 2, 8};
  // A W needs as much: the inputs of the products, and the gradients of their results.
  const schedule::Costs costs = {.offload = 1,
                                 .reload = 1,
                                 .activation_bytes = 2.0 * kLayers * kResult,
                                 .offload_bytes = 2.0 * kLayers * kResult,
                                 .weight_input_bytes = 2.0 * kLayers * kResult};
  for (const char* name : {"GPipe", "1F1B", "ZB-H1"}) {
    const Measured plain = train(program_of(name, shape, {}));
    for (const std::vector<int>& stages : {std::vector<int>{}, {0}, {0, 1}}) {
      const ir::Program program = program_of(name, shape, stages);
      const Measured measured = train(program);
      const schedule::SimulateResult simulated = schedule::simulate(
          schedule::compile({.source = ir::AnySchedule(program)}), {.costs = costs});
      ASSERT_TRUE(simulated.ok());
      for (const size_t rank : {0, 1}) {
        const double predicted = simulated.simulation->report.ranks[rank].peak_bytes.amount;
        EXPECT_NEAR(static_cast<double>(measured.peaks[rank]) / predicted, 1, 0.02)
            << name << ", rank " << rank << ": " << stages.size() << " stages offload";
        EXPECT_TRUE(at::equal(measured.grads[rank], plain.grads[rank]));
      }
    }
  }
}

// Gathered parameters, which a wrapper frees and fills again, are no results.
TEST(Offload, StagesMayBeSharded) {
  const tests::Wrap wrap = [](const std::shared_ptr<tests::Layers>& stage,
                              const comms::BackendPtr& group) {
    std::vector<std::shared_ptr<fsdp::Sharded>> units;
    for (const auto& layer : stage->layers()) units.push_back(fsdp::fully_shard(*layer, group));
    return fsdp::fully_shard(*stage, group)->data_parallel();
  };
  for (const char* name : {"1F1B", "ZBVZeroBubble"}) {
    const schedules::ScheduleSpec& spec = *schedules::find_schedule(name);
    ir::Program program = tests::program_of({.schedule = &spec, .reduce_every = 2});
    program.offload.resize(static_cast<size_t>(program.placement.num_stages()));
    std::iota(program.offload.begin(), program.offload.end(), 0);
    const tests::PipelineCase pipeline{
        .schedule = &spec,
        .program = program,
        .steps = 2,
        .layers = {.frozen = {"layer3.weight1"},
                   .call = [](const std::shared_ptr<tests::Layer>& layer, const at::Tensor& x) {
                     return modules::forward(layer, x);
                   }}};
    expect_trained(
        train_reference(pipeline), train_pipeline(pipeline, wrap),
        [](const at::Tensor& whole, int copy) { return tests::part_of(whole, copy, 2); });
  }
}

// The error of a step on one rank, whose stage `make` makes there.
std::string error_of(const std::function<std::shared_ptr<executor::Stage>()>& make) {
  const ir::Program program = program_of("GPipe", {1, 1, 2}, {0});
  std::vector<comms::World> worlds = tests::make_worlds(1);
  return tests::run_ranks(1, [&](int) {
    Executor executor(
        program, {{0, {make()}}}, worlds[0],
        {.loss = [](const Tensors& out) { return out[0].sum(); }, .device = tests::here()});
    executor.step({.inputs = {at::ones({4, 8}, tests::here())}});
  });
}

TEST(Offload, Errors) {
  const auto expect = [](const std::string& error, const std::string& part) {
    EXPECT_NE(error.find(part), std::string::npos) << error;
  };
  const auto weight = [] { return at::ones({8}, tests::here()).set_requires_grad(true); };
  const std::string none =
      "bytes beside its inputs and weights (ModuleStage::set_least_offload), got none";
  expect(error_of([&] {
           return std::make_shared<ModuleStage>(
               [w = weight()](const Tensors& in) { return Tensors{at::sin(in[0] * w)}; });
         }),
         "offload: expected a forward that saves tensors of at least 65536 " + none);
  expect(error_of([&] {
           const auto stage = std::make_shared<ModuleStage>([w = weight()](const Tensors& in) {
             return Tensors{in[0] * w.view({1, 8})};
           });
           stage->set_least_offload(1);
           return stage;
         }),
         "offload: expected a forward that saves tensors of at least 1 " + none);
  expect(error_of([&] {
           const auto stage = std::make_shared<ModuleStage>([w = weight()](const Tensors& in) {
             at::Tensor h = in[0] * w;
             const at::Tensor out = at::sin(h);
             h.add_(1);
             return Tensors{out};
           });
           stage->set_least_offload(1);
           return stage;
         }),
         "offload: a tensor that a forward saved for its backward was written in place: expected "
         "no such write between the two");
  // Implements its own backward.
  struct Own final : executor::Stage {
    Tensors forward(int, const Tensors& inputs) override { return inputs; }
    Tensors backward(int, Tensors grads) override { return grads; }
    Tensors backward_input(int, Tensors grads) override { return grads; }
    void backward_weight(int) override {}
    void clear() override {}
  };
  expect(error_of([] { return std::make_shared<Own>(); }),
         "stage 0: expected one that offloads, as the program says, got one without "
         "Stage::set_offload");
}

}  // namespace
}  // namespace pipewright
