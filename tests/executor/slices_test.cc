// Programs whose microbatches are cut into slices: attention gets the slices before through a
// SliceCache, and losses and gradients are those of whole sequences without a pipeline.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "pipewright/autograd/checkpoint.h"
#include "pipewright/comms/mesh.h"
#include "pipewright/ddp/replicate.h"
#include "pipewright/executor/executor.h"
#include "pipewright/executor/module_stage.h"
#include "pipewright/executor/slice_cache.h"
#include "pipewright/fsdp/fully_shard.h"
#include "pipewright/modules/data_parallel.h"
#include "pipewright/modules/distribution.h"
#include "pipewright/modules/forward.h"
#include "pipewright/schedule/compile/compile.h"
#include "pipewright/schedules/registry.h"
#include "tests/executor/trainer.h"
#include "tests/support/ranks/ground.h"
#include "tests/support/ranks/ranks.h"

namespace pipewright::executor {
namespace {

constexpr int64_t kDim = 4, kSequence = 12, kRows = 2;  // rows of a microbatch

// Causal attention of one head, [rows, sequence, dim] to the same.
struct Attention : torch::nn::Module {
  explicit Attention(std::shared_ptr<SliceCache> slices, int stage)
      : projection(register_module("projection", torch::nn::Linear(kDim, 3 * kDim))),
        cache(std::move(slices)),
        keys(cache->add()),
        values(cache->add()) {
    to(at::kDouble);
    const c10::NoGradGuard no_grad;
    projection->weight.copy_(
        at::arange(3 * kDim * kDim).view({3 * kDim, kDim}).mul(0.7 + stage).sin());
    projection->bias.fill_(0.1 * stage);
    to(tests::here());
  }
  at::Tensor forward(const at::Tensor& x) {
    const auto parts = projection->forward(x).chunk(3, -1);
    const at::Tensor k = extend ? extend(parts[1]) : cache->extend(keys, parts[1], 1);
    const at::Tensor v = cache->extend(values, parts[2], -2);
    const int64_t first = cache->index() * x.size(1);
    const at::Tensor scores = at::matmul(parts[0], k.transpose(1, 2));
    const at::Tensor mask =
        at::ones({x.size(1), k.size(1)}, x.options().dtype(at::kBool)).tril(first);
    return x + at::matmul(at::softmax(scores.masked_fill(mask.logical_not(), -1e300), -1), v);
  }

  torch::nn::Linear projection;
  const std::shared_ptr<SliceCache> cache;
  const size_t keys, values;
  std::function<at::Tensor(const at::Tensor& k)> extend;  // instead of the cache's for keys
};

at::Tensor data(int copy, int64_t microbatches, double scale) {
  return at::arange(microbatches * kRows * kSequence * kDim, at::kDouble)
      .view({microbatches * kRows, kSequence, kDim})
      .mul(scale + copy)
      .sin()
      .to(tests::here());
}

// The mean over slices of equal length is the mean over the sequence.
at::Tensor loss_of(const at::Tensor& output, const at::Tensor& target) {
  return at::mse_loss(output, target);
}

struct Result {
  std::vector<at::Tensor> grads = {};  // weight and bias of each stage
  at::Tensor loss = {}, outputs = {};
};

// All stages, microbatch by microbatch, on whole sequences.
Result without_pipeline(int stages, int microbatches, int copies) {
  std::vector<std::shared_ptr<Attention>> model;
  for (int stage = 0; stage < stages; ++stage)
    model.push_back(std::make_shared<Attention>(std::make_shared<SliceCache>(), stage));
  Result result{.loss = at::zeros({}, at::kDouble)};
  for (int copy = 0; copy < copies; ++copy) {
    const auto inputs = data(copy, microbatches, 0.3).chunk(microbatches);
    const auto targets = data(copy, microbatches, 0.7).chunk(microbatches);
    std::vector<at::Tensor> outputs;
    for (size_t m = 0; m < inputs.size(); ++m) {
      at::Tensor x = inputs[m];
      for (const auto& stage : model) x = stage->forward(x);
      const at::Tensor loss = loss_of(x, targets[m]) / (microbatches * copies);
      loss.backward();
      result.loss += loss.detach().cpu();
      outputs.push_back(x.detach());
    }
    if (copy == 0) result.outputs = at::cat(outputs).cpu();
  }
  for (const auto& stage : model)
    for (const at::Tensor& parameter : stage->parameters())
      result.grads.push_back(parameter.grad().cpu());
  return result;
}

// A schedule, whose backwards are split, with W last, if it says so.
ir::Program program_of(const std::string& name, int ranks, int microbatches, int slices,
                       bool splits, const ir::Lowering& policies = {}) {
  ir::ComputeOrder order = schedules::make_order(
      *schedules::find_schedule(name),
      {.ranks = ranks, .stages = ranks, .microbatches = microbatches, .slices = slices});
  for (ir::Row& row : order.rows) {
    if (!splits) break;
    ir::Row split, last;
    for (const ir::Action& action : row) {
      const ir::ActionPart part = action.parts()[0];
      if (action.kind() == ir::ActionKind::kBackward) {
        split.emplace_back(ir::ActionKind::kBackwardInput, part.stage(), part.microbatch());
        last.emplace_back(ir::ActionKind::kBackwardWeight, part.stage(), part.microbatch());
      } else {
        split.push_back(action);
      }
    }
    split.insert(split.end(), last.begin(), last.end());
    row = split;
  }
  schedule::CompileRequest request{.source = ir::AnySchedule(order)};
  request.policies = policies;
  return schedule::compile(std::move(request)).program();
}

// What a stage does beside its forward.
enum class Extra { kNone, kRecompute, kCheckpoint };

struct Run {
  ir::Program program;
  int microbatches = 0;
  Parallel parallel = Parallel::kNone;
  int copies = 1;
  Extra extra = Extra::kNone;
};

// Trains a step on each rank, and compares with the reference. Exactly if microbatches are whole.
void expect_parity(const Run& run) {
  at::set_num_threads(1);
  const int ranks = run.program.placement.num_ranks(), stages = run.program.placement.num_stages();
  const Result expected = without_pipeline(stages, run.microbatches, run.copies);
  const auto expect_equal = [&](const at::Tensor& got, const at::Tensor& wanted) {
    const bool is_exact = run.program.slices == 1 && run.copies == 1 && !tests::is_on_device();
    EXPECT_TRUE(is_exact ? at::equal(got.cpu(), wanted)
                         : at::allclose(got.cpu(), wanted, 1e-10, 1e-12))
        << (got.cpu() - wanted).abs().max();
  };
  std::vector<comms::World> worlds = tests::make_worlds(ranks * run.copies);
  const auto body = [&](int world_rank) {
    comms::World& world = worlds[static_cast<size_t>(world_rank)];
    comms::Mesh mesh(world, {{"pp", ranks}, {"dp", run.copies}});
    const int rank = mesh.coordinate("pp"), copy = mesh.coordinate("dp");
    const auto cache = std::make_shared<SliceCache>();
    const auto module = std::make_shared<Attention>(cache, rank);
    LocalStage local;
    if (run.parallel == Parallel::kReplicate)
      local.data_parallel = ddp::replicate(*module, mesh.group({"dp"}))->data_parallel();
    if (run.parallel == Parallel::kShard)
      local.data_parallel = fsdp::fully_shard(*module, mesh.group({"dp"}))->data_parallel();
    const autograd::Forward forward = [module](const Tensors& in) {
      return Tensors{modules::forward(module, in[0])};
    };
    const auto stage = std::make_shared<ModuleStage>(
        run.extra != Extra::kCheckpoint ? forward : [forward](const Tensors& in) {
          return autograd::checkpoint(forward, in);
        });
    stage->set_slice_cache(cache);
    local.stage = stage;
    ir::Program program = run.program;
    if (run.extra == Extra::kRecompute)
      for (int index = 0; index < stages; ++index) program.recompute.push_back(index);
    Executor executor(program, {{rank, local}}, world,
                      {.loss = [](const Tensors& out,
                                  const Tensors& target) { return loss_of(out[0], target[0]); },
                       .device = tests::here(),
                       .ranks = mesh.ranks({"pp"})});
    const Batch batch{.inputs = {data(copy, run.microbatches, 0.3)},
                      .targets = {data(copy, run.microbatches, 0.7)}};
    for (int step = 0; step < 2; ++step) {
      module->zero_grad();
      const StepResult result = executor.step(batch, /*return_outputs=*/true);
      const StepResult evaluated = executor.eval(batch);
      for (const Tensors& outputs : {result.outputs, evaluated.outputs})
        if (copy == 0 && !outputs.empty()) expect_equal(outputs[0], expected.outputs);
      if (run.copies == 1 && !result.losses.empty()) {
        EXPECT_EQ(result.losses.size(), static_cast<size_t>(run.program.num_microbatches));
        at::Tensor sum = at::zeros({}, at::kDouble);
        for (const at::Tensor& loss : result.losses)
          sum += loss.detach().cpu() / run.program.num_microbatches;
        EXPECT_TRUE(at::allclose(sum, expected.loss, 1e-12));
      }
      const auto parameters = module->parameters();
      for (size_t i = 0; i < parameters.size(); ++i)
        expect_equal(modules::full_tensor(parameters[i], parameters[i].grad()),
                     expected.grads[2 * static_cast<size_t>(rank) + i]);
    }
  };
  EXPECT_EQ(tests::run_ranks(ranks * run.copies, body), "");
}

TEST(Slices, GradientsAreThoseOfWholeSequences) {
  for (const char* name : {"GPipe", "Seq1F1B"}) {
    for (const int ranks : {1, 2, 3}) {
      for (const int slices : {1, 2, 3, 4}) {
        for (const bool splits : {false, true}) {
          if (tests::is_on_device() && (ranks != 2 || slices % 2 == 1)) continue;
          SCOPED_TRACE(std::string(name) + " " + std::to_string(ranks) + " ranks, " +
                       std::to_string(slices) + " slices" + (splits ? ", split" : ""));
          expect_parity({program_of(name, ranks, 3, slices, splits), 3});
        }
      }
    }
  }
}

TEST(Slices, Recompute) {
  for (const Extra extra : {Extra::kRecompute, Extra::kCheckpoint}) {
    for (const bool splits : {false, true})
      expect_parity(
          {.program = program_of("Seq1F1B", 2, 3, 3, splits), .microbatches = 3, .extra = extra});
  }
}

TEST(Slices, WithDataParallelism) {
  for (const Parallel parallel : {Parallel::kReplicate, Parallel::kShard}) {
    for (const bool splits : {false, true})
      expect_parity({program_of("Seq1F1B", 2, 3, 3, splits), 3, parallel, 2});
  }
}

// The error of a step of one rank, whose keys `extend` handles instead of the cache; empty if there
// is none. `uses_cache`: the stage has the cache of its module, and not another one.
std::string error_of(const std::function<at::Tensor(Attention&, const at::Tensor&)>& extend,
                     int64_t sequence = kSequence, bool uses_cache = true) {
  std::vector<comms::World> worlds = tests::make_worlds(1);
  return tests::run_ranks(1, [&](int) {
    const auto cache = std::make_shared<SliceCache>();
    const auto module = std::make_shared<Attention>(cache, 0);
    if (extend) module->extend = [&](const at::Tensor& k) { return extend(*module, k); };
    const auto stage = make_stage(module);
    stage->set_slice_cache(uses_cache ? cache : std::make_shared<SliceCache>());
    Executor executor(
        program_of("GPipe", 1, 2, 3, false), {{0, {stage}}}, worlds[0],
        {.loss = [](const Tensors& out) { return out[0].sum(); }, .device = tests::here()});
    executor.step({.inputs = {data(0, 2, 0.3).narrow(1, 0, sequence)}});
  });
}

void expect_error(const std::string& error, const std::string& text) {
  EXPECT_NE(error.find(text), std::string::npos) << error;
}

TEST(Slices, TheSequenceMustDivide) {
  expect_error(error_of(nullptr, 11),
               "input 0: expected a multiple of 3 slices along dimension 1, got 11");
}

TEST(Slices, AStageSaysThatItRunsSlices) {
  std::vector<comms::World> worlds = tests::make_worlds(1);
  const auto error = tests::run_ranks(1, [&](int) {
    const auto stage = make_stage(torch::nn::Linear(4, 4));
    Executor(program_of("GPipe", 1, 2, 3, false), {{0, {stage}}}, worlds[0],
             {.loss = [](const Tensors& out) { return out[0].sum(); }});
  });
  expect_error(error,
               "stage 0: expected one that runs slices of microbatches, of which the program "
               "has 3, got one without ModuleStage::set_slice_cache");
}

TEST(Slices, AModuleMustUseItsCache) {
  expect_error(
      error_of(nullptr, kSequence, /*uses_cache=*/false),
      "expected modules that extend the SliceCache of their stage, or read its index(), got ");
  expect_error(error_of([](Attention&, const at::Tensor& k) { return k; }),
               "result 0 of slice 0 of microbatch 0: expected the forward to extend it, which it "
               "has not");
  expect_error(
      error_of([](Attention& module, const at::Tensor& k) {
        module.cache->extend(module.keys, k, 1);
        return module.cache->extend(module.keys, k, 1);
      }),
      "result 0 of slice 0 of microbatch 0: expected one call of extend() per forward, got "
      "a second one");
  expect_error(error_of([](Attention& module, const at::Tensor& k) {
                 const int64_t length = module.cache->index() == 1 ? 3 : 4;
                 return module.cache->extend(module.keys, k.narrow(1, 0, length), 1);
               }),
               "result 0 of slice 1 of microbatch 0: expected the shape of the slices before it, "
               "got another");
}

// Later slices attend to what slice 0 leaves, which it has detached: their gradients would be lost.
TEST(Slices, GradientsOfLaterSlicesAreNotLost) {
  expect_error(error_of([](Attention& module, const at::Tensor& k) {
                 return module.cache->extend(module.keys,
                                             module.cache->index() == 0 ? k.detach() : k, 1);
               }),
               "result 0 of slice 0 of microbatch 0: expected its gradient to come back, as later "
               "slices have one for it, got none");
}

// A program that the verifier refuses never computes wrong gradients.
TEST(Slices, OrdersThatSlicesDoNotAllowFail) {
  for (const bool in_forward : {true, false}) {
    ir::Program program = program_of("GPipe", 1, 1, 2, false);
    ir::Row& row = program.rows[0];
    const auto kind = in_forward ? ir::ActionKind::kForward : ir::ActionKind::kBackward;
    const auto is_of_kind = [&](const ir::Action& action) { return action.kind() == kind; };
    const auto first = std::ranges::find_if(row, is_of_kind);
    std::iter_swap(first, std::find_if(first + 1, row.end(), is_of_kind));
    std::vector<comms::World> worlds = tests::make_worlds(1);
    const std::string error = tests::run_ranks(1, [&](int) {
      const auto cache = std::make_shared<SliceCache>();
      const auto stage = make_stage(std::make_shared<Attention>(cache, 0));
      stage->set_slice_cache(cache);
      Executor executor(program, {{0, {stage}}}, worlds[0],
                        {.loss = [](const Tensors& out) { return out[0].sum(); },
                         .allow_unverified = true,
                         .device = tests::here()});
      executor.step({.inputs = {data(0, 1, 0.3)}});
    });
    expect_error(error, in_forward ? "forward of result 0 of slice 1 of microbatch 0: expected "
                                     "that of slice 0"
                                   : "backward of result 0 of slice 0 of microbatch 0: expected "
                                     "that of slice 1");
  }
}

// A stage that has only embeddings of positions reads index() and caches nothing.
TEST(Slices, PositionsOfSlices) {
  std::vector<comms::World> worlds = tests::make_worlds(1);
  const auto body = [&](int) {
    const auto cache = std::make_shared<SliceCache>();
    const at::Tensor positions =
        data(0, 1, 0.9)[0].clone().set_requires_grad(true);  // [sequence, dim]
    const auto stage = std::make_shared<ModuleStage>([&](const Tensors& in) {
      const int64_t length = in[0].size(1);
      return Tensors{in[0] * positions.narrow(0, cache->index() * length, length)};
    });
    stage->set_slice_cache(cache);
    Executor executor(
        program_of("GPipe", 1, 2, 3, false), {{0, {stage}}}, worlds[0],
        {.loss = [](const Tensors& out) { return out[0].mean(); }, .device = tests::here()});
    const at::Tensor inputs = data(0, 2, 0.3);
    executor.step({.inputs = {inputs}});
    const at::Tensor grad = positions.grad().clone();
    positions.mutable_grad().zero_();
    (inputs * positions).mean().backward();
    EXPECT_TRUE(at::allclose(grad, positions.grad(), 1e-10, 1e-12));
  };
  EXPECT_EQ(tests::run_ranks(1, body), "");
}

// A stage that computes each position without the others needs no cache.
TEST(Slices, WithoutACache) {
  std::vector<comms::World> worlds = tests::make_worlds(1);
  EXPECT_EQ(
      tests::run_ranks(1,
                       [&](int) {
                         torch::nn::Linear linear(kDim, kDim);
                         linear->to(tests::here(), at::kDouble);
                         const auto stage = make_stage(linear);
                         stage->set_slice_cache(nullptr);
                         Executor executor(
                             program_of("GPipe", 1, 2, 3, false), {{0, {stage}}}, worlds[0],
                             {.loss = [](const Tensors& out) { return out[0].square().mean(); },
                              .device = tests::here()});
                         const at::Tensor inputs = data(0, 2, 0.3);
                         executor.step({.inputs = {inputs}});
                         const at::Tensor grad = linear->weight.grad().clone();
                         linear->zero_grad();
                         linear->forward(inputs).square().mean().backward();
                         EXPECT_TRUE(at::allclose(grad, linear->weight.grad(), 1e-10));
                       }),
      "");
}

}  // namespace
}  // namespace pipewright::executor
