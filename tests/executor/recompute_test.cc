// Stages that a program names in `recompute`: their forward runs again in backward and saves
// nothing in between, that of other stages runs once, and training is that of the model without a
// pipeline.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "pipewright/comms/threads/threads.h"
#include "pipewright/executor/executor.h"
#include "pipewright/executor/module_stage.h"
#include "pipewright/schedule/compile/compile.h"
#include "pipewright/schedule/search/search.h"
#include "tests/executor/models.h"
#include "tests/support/ranks/ranks.h"

namespace pipewright::executor {
namespace {

ir::Program compiled(const char* name, const schedules::Shape& shape, std::vector<int> recompute) {
  ir::Program program = schedule::compile({.source = name, .shape = shape}).program();
  program.recompute = std::move(recompute);
  return program;
}

void expect_parity(const ir::Program& program, ModelKind kind) {
  SCOPED_TRACE(program.name);
  const int num_stages = program.placement.num_stages(), microbatches = program.num_microbatches;
  const int64_t batch = 2 * microbatches;
  const Trained reference = train_reference(make_model(kind, num_stages, batch), microbatches);
  Trained trained;
  trained.grads.resize(static_cast<size_t>(num_stages));
  trained.weights.resize(static_cast<size_t>(num_stages));
  std::vector<int> forwards(static_cast<size_t>(num_stages));
  std::vector<comms::World> worlds = comms::thread_worlds(program.placement.num_ranks());
  const auto train = [&](int rank) {
    Model model = make_model(kind, num_stages, batch);
    for (size_t stage = 0; stage < forwards.size(); ++stage) {
      model.stages[stage] = [&count = forwards[stage],
                             forward = model.stages[stage]](const Tensors& inputs) {
        ++count;
        return forward(inputs);
      };
    }
    train_rank(program, model, worlds[static_cast<size_t>(rank)], {}, &trained);
  };
  ASSERT_EQ(tests::run_ranks(program.placement.num_ranks(), train), "");
  EXPECT_EQ(compare(reference, trained, program, all_stages(program)), "");
  for (int stage = 0; stage < num_stages; ++stage)
    EXPECT_EQ(forwards[static_cast<size_t>(stage)],
              kSteps * microbatches * (ir::recomputes(program, stage) ? 2 : 1))
        << stage;
}

TEST(Recompute, NamedStagesRunTheirForwardAgain) {
  for (const ModelKind kind : {ModelKind::kMlp, ModelKind::kTransformer}) {
    expect_parity(compiled("1F1B", {3, 3, 5}, {0, 1}), kind);
    expect_parity(compiled("ZBV", {2, 4, 4}, {1, 3}), kind);        // I and W
    expect_parity(compiled("DualPipeV", {2, 4, 6}, {0, 2}), kind);  // compounds
  }
}

TEST(Recompute, FoundSchedules) {
  const schedule::search::SearchResult found =
      schedule::search::search_schedule({.placement = ir::Placement::loop(4, 4),
                                         .num_microbatches = 8,
                                         .costs = {.forward = 10,
                                                   .backward_input = 11,
                                                   .backward_weight = 9,
                                                   .activation_bytes = 100,
                                                   .checkpoint_bytes = 10,
                                                   .weight_input_bytes = 40},
                                         .memory = {.activations = 2},
                                         .may_recompute = true,
                                         .evaluations = 300'000});
  EXPECT_GT(found.order.recompute.size(), 0u);
  EXPECT_LT(found.order.recompute.size(), 4u);
  expect_parity(schedule::compile({.source = ir::AnySchedule(found.order)}).program(),
                ModelKind::kMlp);
}

// Runs a step of GPipe on two ranks, whose stages each save one tensor per microbatch. Returns the
// most that were alive of each stage.
std::array<int, 2> most_saved(const std::vector<int>& recompute) {
  const ir::Program program = compiled("GPipe", {2, 2, 4}, recompute);
  std::vector<comms::World> worlds = comms::thread_worlds(2);
  std::array<int, 2> alive = {}, most = {};
  const auto train = [&](int rank) {
    const auto stage = static_cast<size_t>(rank);
    const at::Tensor weight = at::ones({1}).set_requires_grad(true);
    const auto forward = [&, stage](const Tensors& in) {
      most[stage] = std::max(most[stage], ++alive[stage]);
      const at::Tensor saved = at::from_blob(new float(1), {1}, [&, stage](void* data) {
        --alive[stage], delete static_cast<float*>(data);
      });
      return Tensors{in[0] + saved * weight};
    };
    Executor executor(program, {{rank, {std::make_shared<ModuleStage>(forward)}}}, worlds[stage],
                      {.loss = [](const Tensors& out) { return out[0].sum(); }});
    executor.step({.inputs = {at::ones({4})}});
  };
  EXPECT_EQ(tests::run_ranks(2, train), "");
  EXPECT_EQ(alive, (std::array<int, 2>{0, 0}));
  return most;
}

TEST(Recompute, NothingIsSavedFromForwardToBackward) {
  EXPECT_EQ(most_saved({}), (std::array<int, 2>{4, 4}));
  EXPECT_EQ(most_saved({0}), (std::array<int, 2>{1, 4}));
  EXPECT_EQ(most_saved({0, 1}), (std::array<int, 2>{1, 1}));
}

// It need not wait for the gradient: the last stage computes its loss only when the first one has
// run its forward again.
TEST(Recompute, RunsWhileTheGradientIsOnItsWay) {
  for (const char* schedule : {"1F1B", "ZB-H1"}) {
    const ir::Program program = compiled(schedule, {2, 2, 1}, {0});
    std::vector<comms::World> worlds = comms::thread_worlds(2);
    std::atomic<int> forwards = 0;
    const auto train = [&](int rank) {
      const at::Tensor weight = at::ones({1}).set_requires_grad(true);
      const auto forward = [&, rank](const Tensors& in) {
        if (rank == 0) ++forwards;
        return Tensors{in[0] * weight};
      };
      const auto loss = [&](const Tensors& out) {
        const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(20);
        while (forwards < 2 && std::chrono::steady_clock::now() < limit) std::this_thread::yield();
        EXPECT_EQ(forwards, 2);
        return out[0].sum();
      };
      Executor executor(program, {{rank, {std::make_shared<ModuleStage>(forward)}}},
                        worlds[static_cast<size_t>(rank)], {.loss = loss});
      executor.step({.inputs = {at::full({4}, 3.)}});
      EXPECT_EQ(weight.grad().item<double>(), 12);
    };
    ASSERT_EQ(tests::run_ranks(2, train), "");
    EXPECT_EQ(forwards, 2);
  }
}

// A batch norm whose stage recomputes has the statistics of one that does not.
TEST(Recompute, RunningStatisticsAreUpdatedOnce) {
  constexpr int kMicrobatches = 4;
  for (const char* schedule : {"1F1B", "ZB-H1"}) {
    const ir::Program program = compiled(schedule, {2, 2, kMicrobatches}, {0, 1});
    const at::Tensor batch = at::arange(24, at::kFloat).sin().view({8, 3});
    std::vector<torch::nn::BatchNorm1d> plain, norms;
    for (int i = 0; i < 2; ++i) {
      plain.emplace_back(3);
      norms.emplace_back(3);
    }
    for (const at::Tensor& microbatch : batch.chunk(kMicrobatches))
      plain[1]->forward(plain[0]->forward(microbatch));
    std::vector<comms::World> worlds = comms::thread_worlds(2);
    const auto train = [&](int rank) {
      const auto stage = static_cast<size_t>(rank);
      Executor executor(program, {{rank, {make_stage(norms[stage])}}}, worlds[stage],
                        {.loss = [](const Tensors& out) { return out[0].square().sum(); }});
      executor.step({.inputs = {batch}});
    };
    ASSERT_EQ(tests::run_ranks(2, train), "");
    for (size_t stage = 0; stage < 2; ++stage) {
      EXPECT_EQ(norms[stage]->num_batches_tracked.item<int64_t>(), kMicrobatches);
      EXPECT_TRUE(at::equal(norms[stage]->running_mean, plain[stage]->running_mean));
      EXPECT_TRUE(at::equal(norms[stage]->running_var, plain[stage]->running_var));
    }
  }
}

// An executor for evaluation, say, that shares the stages and was created later.
TEST(Recompute, EachExecutorHasItsOwnProgram) {
  std::vector<comms::World> worlds = comms::thread_worlds(1);
  int forwards = 0;
  const at::Tensor weight = at::ones({1}).set_requires_grad(true);
  const std::map<int, LocalStage> stages = {
      {0, {std::make_shared<ModuleStage>([&](const Tensors& in) {
         ++forwards;
         return Tensors{in[0] * weight};
       })}}};
  const ExecutorOptions options = {.loss = [](const Tensors& out) { return out[0].sum(); }};
  Executor recomputing(compiled("GPipe", {1, 1, 4}, {0}), stages, worlds[0], options);
  Executor plain(compiled("GPipe", {1, 1, 4}, {}), stages, worlds[0], options);
  const Batch batch = {.inputs = {at::ones({4})}};
  const auto forwards_of = [&](auto run) {
    forwards = 0;
    run();
    return forwards;
  };
  EXPECT_EQ(forwards_of([&] { recomputing.step(batch); }), 8);
  EXPECT_EQ(forwards_of([&] { plain.step(batch); }), 4);
  EXPECT_EQ(forwards_of([&] { recomputing.step(batch); }), 8);
  EXPECT_EQ(forwards_of([&] { recomputing.eval(batch); }), 4);
}

// A stage that saves everything.
struct Plain final : Stage {
  Tensors forward(int, const Tensors& inputs) override { return inputs; }
  Tensors backward(int, Tensors grads) override { return grads; }
  Tensors backward_input(int, Tensors grads) override { return grads; }
  void backward_weight(int) override {}
  void clear() override {}
};

TEST(Recompute, AStageThatCannotIsRefusedOnEveryRank) {
  const ir::Program program = compiled("1F1B", {2, 2, 2}, {1});
  std::vector<comms::World> worlds = comms::thread_worlds(2);
  EXPECT_EQ(tests::run_ranks(2,
                             [&](int rank) {
                               try {
                                 Executor(program, {{rank, {std::make_shared<Plain>()}}},
                                          worlds[static_cast<size_t>(rank)],
                                          {.loss = [](const Tensors& out) { return out[0]; }});
                                 FAIL();
                               } catch (const std::invalid_argument& error) {
                                 EXPECT_NE(std::string(error.what())
                                               .find("stage 1: expected one that recomputes, as "
                                                     "the program says, got one without "
                                                     "Stage::set_recompute"),
                                           std::string::npos)
                                     << error.what();
                               }
                             }),
            "");
}

}  // namespace
}  // namespace pipewright::executor
