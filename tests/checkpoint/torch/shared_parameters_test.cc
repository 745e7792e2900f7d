// Parameters that stages or names share: saved once, loaded wherever they are.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/optim/adamw.h>

#include "pipewright/checkpoint/export.h"
#include "pipewright/comms/store_rounds.h"
#include "pipewright/comms/threads/threads.h"
#include "pipewright/modules/distribution.h"
#include "pipewright/modules/tied_parameters.h"
#include "tests/checkpoint/scratch.h"
#include "tests/checkpoint/torch/saved.h"
#include "tests/support/ranks/ranks.h"

namespace pipewright::checkpoint {
namespace {

namespace fs = std::filesystem;
namespace nn = torch::nn;
using tests::scratch_folder;

// A rank's copies of one parameter, which stages share: `tokens.weight`, and another name of it.
struct Tied {
  Tied(comms::World& world, const std::vector<int>& ranks) : tied(world) {
    std::vector<at::Tensor> copies;
    for (size_t i = 0; i < ranks.size(); ++i) {
      if (ranks[i] != world.rank()) continue;
      module.push_back(std::make_shared<nn::Module>());
      const at::Tensor weight = at::rand({5, 2}).requires_grad_();
      copies.push_back(module.back()->register_parameter(i == 0 ? "tokens_weight" : "out", weight));
    }
    tied.tie("tokens_weight", ranks, copies);
    optimizer.emplace(copies);
    size_t copy = 0;
    for (size_t i = 0; i < ranks.size(); ++i) {
      if (ranks[i] != world.rank()) continue;
      const nn::Module& stage = *module[copy++];
      std::map<std::string, std::string> names;
      if (i > 0) names["out"] = "tokens_weight";
      state.add_module(stage, modules::layouts(stage), "", names);
    }
    state.set_optimizer(*optimizer);
  }
  void train(double gradient) {
    for (const auto& stage : module)
      stage->parameters()[0].mutable_grad() = at::full({5, 2}, gradient);
    optimizer->step();
  }

  modules::TiedParameters tied;
  std::vector<std::shared_ptr<nn::Module>> module;
  std::optional<torch::optim::AdamW> optimizer;
  TrainingState state;
};

// Copies on two ranks, on one, or a single parameter: each loads what the others have saved, and
// each checkpoint has the parameter and its moments once.
TEST(SharedParameters, TiedParametersAreSavedOnce) {
  std::vector<comms::World> worlds = comms::thread_worlds(2);
  const fs::path folder = scratch_folder("tied");
  std::vector<at::Tensor> first(2), next(2);  // the copies, when saved and one step later
  EXPECT_EQ(tests::run_ranks(2,
                             [&](int rank) {
                               comms::World& world = worlds[static_cast<size_t>(rank)];
                               Tied both(world, {1, 0});
                               both.train(0.5);
                               const at::Tensor copy = both.module[0]->parameters()[0];
                               first[static_cast<size_t>(rank)] = copy.detach().clone();
                               comms::StoreExchange exchange(world, "test");
                               save(both.state, folder, rank, std::ref(exchange));
                               both.train(0.25);
                               next[static_cast<size_t>(rank)] = copy.detach();
                             }),
            "");
  const fs::path path = folder / "step-000007";
  const auto saved = contents(path);
  EXPECT_EQ(saved.size(), 4u);
  expect_bytes(saved.at("tokens_weight"), first[0], "tokens_weight");

  std::vector<comms::World> one = comms::thread_worlds(1);
  Tied here(one[0], {0, 0});
  here.train(7);  // replaced
  here.state.load(open(path), alone);
  for (const auto& stage : here.module) EXPECT_TRUE(stage->parameters()[0].equal(first[0]));
  const fs::path again = save(here.state, scratch_folder("tied_here"), 0, alone);
  EXPECT_EQ(contents(again), saved);
  here.train(0.25);
  for (const auto& stage : here.module) EXPECT_TRUE(stage->parameters()[0].equal(next[1]));

  Tied single(one[0], {0});
  single.state.load(open(again), alone);
  single.train(0.25);
  EXPECT_TRUE(single.module[0]->parameters()[0].equal(next[0]));
}

// A module that has one tensor under two names, so that its parameters() list it twice.
struct TwoNames : nn::Module {
  TwoNames() : weight(register_parameter("tokens", at::rand({5, 2}))) {
    register_parameter("out", weight);
  }
  at::Tensor weight;
};
struct TrainedTwoNames {
  explicit TrainedTwoNames(double gradient, const std::map<std::string, std::string>& tied = {}) {
    EXPECT_EQ(optimizer.param_groups()[0].params().size(), 2u);
    train(gradient);
    state.add_module(module, {}, "", tied);
    state.set_optimizer(optimizer);
  }
  void train(double gradient) {
    module.weight.mutable_grad() = at::full({5, 2}, gradient);
    optimizer.step();
  }
  TwoNames module;
  torch::optim::AdamW optimizer{module.parameters()};
  TrainingState state;
};

// It is saved under both names, as in PyTorch's state_dict(), or under one if the other is called
// tied to it; its optimizer's state once. What is loaded goes on as what was saved.
TEST(SharedParameters, OneTensorUnderTwoNames) {
  for (const bool is_tied : {false, true}) {
    std::map<std::string, std::string> tied;
    if (is_tied) tied = {{"out", "tokens"}};
    TrainedTwoNames from(0.5, tied), to(7, tied);
    const fs::path path = save(from.state, scratch_folder("two_names"), 0, alone);
    const auto saved = contents(path);
    EXPECT_EQ(saved.size(), is_tied ? 4u : 5u);
    EXPECT_EQ(saved.contains("out"), !is_tied);
    expect_bytes(saved.at("tokens"), from.module.weight, "tokens");
    EXPECT_TRUE(saved.contains("optim.state.tokens.exp_avg"));
    to.state.load(open(path), alone);
    EXPECT_TRUE(to.module.weight.equal(from.module.weight));
    EXPECT_TRUE(to.module.named_parameters()["out"].is_same(to.module.weight));
    from.train(0.25);
    to.train(0.25);
    EXPECT_TRUE(to.module.weight.equal(from.module.weight));
    std::vector<std::string> names;
    for (const auto& [name, bytes] : saved) names.push_back(name);
    const fs::path file = scratch_folder("two_names_out") / "all.safetensors";
    export_file(open(path), names, file, nullptr);
    EXPECT_EQ(contents(file), saved);
  }
}

}  // namespace
}  // namespace pipewright::checkpoint
