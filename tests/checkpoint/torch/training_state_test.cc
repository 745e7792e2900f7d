// Modules and optimizers in checkpoints: any world loads what any other saved, bit for bit, and
// what does not fit is reported at once, on all ranks, before anything changes.
#include "pipewright/checkpoint/torch/training_state.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include "pipewright/comms/mesh.h"
#include "pipewright/comms/store_rounds.h"
#include "pipewright/comms/threads/threads.h"
#include "pipewright/ddp/replicate.h"
#include "pipewright/fsdp/fully_shard.h"
#include "pipewright/ir/errors.h"
#include "pipewright/modules/distribution.h"
#include "tests/checkpoint/scratch.h"
#include "tests/checkpoint/torch/saved.h"
#include "tests/support/ranks/ranks.h"

namespace pipewright::checkpoint {
namespace {

namespace fs = std::filesystem;
namespace nn = torch::nn;
using tests::scratch_folder;

// A Linear, with buffers.
struct Layer : nn::Module {
  Layer(int64_t in, int64_t out) : linear(register_module("linear", nn::Linear(in, out))) {
    scale = register_buffer("scale", at::rand({4}));
    count = register_buffer("count", at::randint(1000, {}, at::kLong));
  }
  nn::Linear linear;
  at::Tensor scale, count;
};
using LayerPtr = std::shared_ptr<Layer>;

// Two of them, of sizes that 2 and 3 do not divide.
struct Net : nn::Module {
  Net()
      : first(register_module("first", std::make_shared<Layer>(5, 7))),
        second(register_module("second", std::make_shared<Layer>(7, 2))) {}
  LayerPtr first, second;
};

// Weights and biases in parameter groups of their own.
std::unique_ptr<torch::optim::AdamW> make_adamw(const std::vector<LayerPtr>& layers, double lr) {
  std::vector<at::Tensor> weights, biases;
  for (const LayerPtr& layer : layers) {
    weights.push_back(layer->linear->weight);
    biases.push_back(layer->linear->bias);
  }
  using Group = torch::optim::OptimizerParamGroup;
  using Options = torch::optim::AdamWOptions;
  return std::make_unique<torch::optim::AdamW>(
      std::vector<Group>{Group(weights, std::make_unique<Options>(Options(lr).amsgrad(true))),
                         Group(biases, std::make_unique<Options>(Options(lr).weight_decay(0)))},
      Options(lr));
}

// A step with random gradients.
void step(torch::optim::Optimizer& optimizer) {
  for (auto& group : optimizer.param_groups()) {
    for (at::Tensor& parameter : group.params())
      parameter.mutable_grad() = at::randn(parameter.sizes());
  }
  optimizer.step();
}

struct Shape {
  int pp = 1, replicate = 1, shard = 1;
  bool is_fsdp = false;

  int ranks() const { return pp * replicate * shard; }
};

// One rank's part of a Net in a world: layers on their pipeline ranks, replicated or sharded.
struct Part {
  Part(const Shape& shape, comms::World& world)
      : mesh(world,
             {{"pp", shape.pp}, {"dp_replicate", shape.replicate}, {"dp_shard", shape.shard}}) {
    const std::vector<std::string> dims = {"dp_replicate", "dp_shard"};
    const int stage = mesh.coordinate("pp");
    if (shape.pp == 1 || stage == 0) layers.push_back(net->first);
    if (shape.pp == 1 || stage == 1) layers.push_back(net->second);
    const auto wrap = [&](nn::Module& module) {
      if (shape.is_fsdp) {
        sharded.push_back(fsdp::fully_shard(module, mesh, dims));
      } else if (shape.ranks() > shape.pp) {
        replicated.push_back(ddp::replicate(module, mesh.group(dims)));
      }
    };
    for (const LayerPtr& layer : layers) wrap(*layer);
    optimizer = make_adamw(layers, 0.5);
    if (shape.pp == 1) {
      // Nested units, and their names in the whole.
      wrap(*net);
      state.add_module(*net, modules::layouts(*net));
    } else {
      state.add_module(*layers[0], modules::layouts(*layers[0]), stage == 0 ? "first." : "second.");
    }
    state.set_optimizer(*optimizer);
  }

  comms::Mesh mesh;
  std::shared_ptr<Net> net = std::make_shared<Net>();
  std::vector<LayerPtr> layers;
  std::vector<std::shared_ptr<fsdp::Sharded>> sharded;
  std::vector<std::shared_ptr<ddp::Replicated>> replicated;
  std::unique_ptr<torch::optim::AdamW> optimizer;
  TrainingState state;
};

// A Net that has trained two steps, alone.
struct Trained {
  Trained() {
    for (int i = 0; i < 2; ++i) step(*optimizer);
    state.add_module(*net);
    state.set_optimizer(*optimizer);
  }
  std::shared_ptr<Net> net = std::make_shared<Net>();
  std::unique_ptr<torch::optim::AdamW> optimizer = make_adamw({net->first, net->second}, 0.25);
  TrainingState state;
};

TEST(TrainingState, SavesTensorsByTheNamesOfPyTorch) {
  Trained trained;
  const fs::path path = save(trained.state, scratch_folder("names"), 0, alone);
  const auto saved = contents(path);
  EXPECT_EQ(saved.size(), 8u + 4 * 3 + 2);  // 8 tensors, 4 with state, 2 of them amsgrad
  expect_bytes(saved.at("second.linear.weight"), trained.net->second->linear->weight, "weight");
  expect_bytes(saved.at("first.count"), trained.net->first->count, "count");
  const auto& state = static_cast<torch::optim::AdamWParamState&>(
      *trained.optimizer->state().at(trained.net->first->linear->weight.unsafeGetTensorImpl()));
  const std::string prefix = "optim.state.first.linear.weight.";
  expect_bytes(saved.at(prefix + "exp_avg"), state.exp_avg(), "exp_avg");
  expect_bytes(saved.at(prefix + "exp_avg_sq"), state.exp_avg_sq(), "exp_avg_sq");
  expect_bytes(saved.at(prefix + "max_exp_avg_sq"), state.max_exp_avg_sq(), "max_exp_avg_sq");
  expect_bytes(saved.at(prefix + "step"), at::full({}, 2.0F), "step");
  const auto manifest = open(path).manifest()->state;
  EXPECT_EQ(manifest.at("optim.name"), "AdamW");
  EXPECT_EQ(manifest.at("optim.param_groups.0.lr"), "0.25");
  EXPECT_EQ(manifest.at("optim.param_groups.0.betas"), "0.9,0.999");
  EXPECT_EQ(manifest.at("optim.param_groups.0.amsgrad"), "true");
  EXPECT_EQ(manifest.at("optim.param_groups.1.weight_decay"), "0");
}

// Training goes on while a copy is saved, and what is saved next is written into the same memory.
// If the copy is deferred, the forward of the next step has changed buffers when it is made.
class Copies : public testing::TestWithParam<bool> {};
TEST_P(Copies, KeepTheirValues) {
  const bool deferred = GetParam();
  Trained trained;
  const fs::path folder = scratch_folder("copy");
  Saver saver({.folder = folder}, alone);
  const auto expect_saved = [&](const Snapshot& snapshot, const StateSnapshot& expected) {
    const auto saved = contents(saver.save(snapshot));
    EXPECT_EQ(saved.size(), expected.memory.size());
    for (size_t i = 0; i < expected.memory.size(); ++i)
      expect_bytes(saved.at(expected.snapshot.parts[i].name), expected.memory[i],
                   expected.snapshot.parts[i].name);
  };
  const auto clone_all = [&] {
    StateSnapshot expected = trained.state.snapshot();
    for (at::Tensor& tensor : expected.memory) tensor = tensor.clone();
    return expected;
  };
  std::vector<const void*> places;
  StateSnapshot copy;
  for (const int64_t at_step : {1, 2}) {
    const StateSnapshot expected = clone_all();
    copy = deferred ? trained.state.deferred_snapshot(std::move(copy))
                    : trained.state.copied_snapshot(std::move(copy));
    EXPECT_EQ(copy.uncopied.empty(), !deferred);
    trained.net->first->scale.mul_(2);
    copy.copy();
    step(*trained.optimizer);
    copy.copy();  // nothing is left to copy
    copy.snapshot.step = at_step;
    expect_saved(copy.snapshot, expected);
    if (places.empty()) {
      for (const at::Tensor& tensor : copy.memory) places.push_back(tensor.const_data_ptr());
    }
    for (size_t i = 0; i < places.size(); ++i)
      EXPECT_EQ(copy.memory[i].const_data_ptr(), places[i]) << copy.snapshot.parts[i].name;
  }
  // Memory of another state is used only where it fits.
  trained.net->first->scale.resize_({6}).fill_(3);
  TrainingState other;
  other.add_module(*trained.net->first);
  const StateSnapshot fits = other.copied_snapshot(std::move(copy));
  for (size_t i = 0; i < fits.memory.size(); ++i)
    EXPECT_EQ(fits.memory[i].sizes().vec(), fits.snapshot.parts[i].box.sizes);
}

INSTANTIATE_TEST_SUITE_P(TrainingState, Copies, testing::Bool(),
                         [](const auto& of) { return of.param ? "Deferred" : "AtOnce"; });

class Worlds : public testing::TestWithParam<Shape> {};

// One rank's checkpoint is loaded by a world. Each rank has its parts then, and what they save is
// the same checkpoint, which one rank loads again.
TEST_P(Worlds, LoadAndSaveTheSameValues) {
  const Shape shape = GetParam();
  Trained trained;
  const fs::path source = save(trained.state, scratch_folder("source"), 0, alone);
  const fs::path folder = scratch_folder("target");
  std::vector<comms::World> worlds = comms::thread_worlds(shape.ranks());
  std::vector<fs::path> saved(worlds.size());
  const std::string errors = tests::run_ranks(shape.ranks(), [&](int rank) {
    comms::World& world = worlds[static_cast<size_t>(rank)];
    Part part(shape, world);
    comms::StoreExchange exchange(world, "test");
    part.state.load(open_on_all(source, rank, std::ref(exchange)), std::ref(exchange));
    // By hand: fully_shard splits dimension 0 by torch.chunk.
    const auto mine = [&](const at::Tensor& whole) {
      if (!shape.is_fsdp) return whole;
      const auto chunks = whole.chunk(shape.shard, 0);
      const auto index = static_cast<size_t>(part.mesh.coordinate("dp_shard"));
      return index < chunks.size() ? chunks[index] : whole.narrow(0, 0, 0);
    };
    for (const LayerPtr& layer : part.layers) {
      const LayerPtr& from = layer == part.net->first ? trained.net->first : trained.net->second;
      EXPECT_TRUE(layer->scale.equal(from->scale));
      EXPECT_TRUE(layer->count.equal(from->count));
      const at::Tensor &to = layer->linear->weight, &whole = from->linear->weight;
      EXPECT_TRUE(to.detach().clone().equal(mine(whole.detach())));
      const auto state_of = [](torch::optim::AdamW& optimizer, const at::Tensor& parameter) {
        return static_cast<torch::optim::AdamWParamState&>(
            *optimizer.state().at(parameter.unsafeGetTensorImpl()));
      };
      const auto moments = state_of(*part.optimizer, to);
      EXPECT_EQ(moments.step(), 2);
      EXPECT_TRUE(moments.exp_avg().equal(mine(state_of(*trained.optimizer, whole).exp_avg())));
    }
    const auto& options =
        static_cast<torch::optim::AdamWOptions&>(part.optimizer->param_groups()[0].options());
    EXPECT_EQ(options.lr(), 0.25);
    saved[static_cast<size_t>(rank)] = save(part.state, folder, rank, std::ref(exchange));
  });
  EXPECT_EQ(errors, "");
  EXPECT_EQ(contents(saved[0]), contents(source));

  Trained other;
  other.state.load(open(saved[0]), alone);
  EXPECT_EQ(contents(save(other.state, scratch_folder("other"), 0, alone)), contents(source));
}

INSTANTIATE_TEST_SUITE_P(Shapes, Worlds,
                         testing::Values(Shape{.pp = 2}, Shape{.replicate = 2},
                                         Shape{.pp = 2, .replicate = 2},
                                         Shape{.shard = 2, .is_fsdp = true},
                                         Shape{.shard = 4, .is_fsdp = true},
                                         Shape{.replicate = 2, .shard = 2, .is_fsdp = true},
                                         Shape{.pp = 2, .shard = 2, .is_fsdp = true}),
                         [](const testing::TestParamInfo<Shape>& tested) {
                           const Shape& shape = tested.param;
                           return "Pp" + std::to_string(shape.pp) + "Replicate" +
                                  std::to_string(shape.replicate) + "Shard" +
                                  std::to_string(shape.shard);
                         });

// A layout of which a rank has two boxes: rank 1 of 2 has columns 1 and 3.
TEST(TrainingState, SeveralBoxesOfOneTensor) {
  const layout::MeshLayout mesh({{"a", 2}});
  const layout::Layout layout(mesh, {layout::TensorPlacement::strided_shard(1, 2)}, {3, 4});
  ASSERT_EQ(layout.boxes(1).size(), 2u);
  const at::Tensor whole = at::rand({3, 4});
  const fs::path folder = scratch_folder("boxes");
  const auto add = [&](TrainingState& state, nn::Module& module, int rank) {
    state.add_module(module, {{"weight", {layout, rank}}});
  };
  std::vector<comms::World> worlds = comms::thread_worlds(2);
  EXPECT_EQ(tests::run_ranks(
                2,
                [&](int rank) {
                  comms::StoreExchange exchange(worlds[static_cast<size_t>(rank)], "test");
                  nn::Module from("from"), to("to");
                  const at::Tensor mine =
                      at::stack({whole.select(1, rank), whole.select(1, rank + 2)}, /*dim=*/1);
                  from.register_parameter("weight", mine.clone());
                  to.register_parameter("weight", at::zeros({3, 2}));
                  TrainingState source, target;
                  add(source, from, rank);
                  add(target, to, rank);
                  const fs::path path = save(source, folder, rank, std::ref(exchange));
                  target.load(open_on_all(path, rank, std::ref(exchange)), std::ref(exchange));
                  EXPECT_TRUE(to.parameters()[0].equal(mine));
                }),
            "");
  nn::Module plain("plain");
  plain.register_parameter("weight", at::zeros({3, 4}));
  TrainingState state;
  state.add_module(plain);
  state.load(open(folder / "step-000007"), alone);
  EXPECT_TRUE(plain.parameters()[0].equal(whole));
}

std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

// Everything is listed, on each rank, although each has only a part; and nothing has changed.
TEST(TrainingState, ReportsAllThatDoesNotFit) {
  nn::Module saved("saved");
  saved.register_parameter("a", at::rand({2, 3}));
  saved.register_parameter("b", at::rand({2}));
  saved.register_parameter("gone", at::rand({2}));
  saved.register_buffer("c", at::rand({2}));
  TrainingState source;
  source.add_module(saved);
  const fs::path path = save(source, scratch_folder("fit"), 0, alone);

  std::vector<comms::World> worlds = comms::thread_worlds(2);
  std::vector<std::string> errors(2);
  EXPECT_EQ(tests::run_ranks(
                2,
                [&](int rank) {
                  nn::Module module("module");
                  if (rank == 0) {
                    module.register_parameter("a", at::zeros({3, 2}));
                    module.register_parameter("b", at::zeros({2}));
                  } else {
                    module.register_buffer("c", at::zeros({2}, at::kDouble));
                    module.register_parameter("new", at::zeros({5}));
                  }
                  TrainingState target;
                  target.add_module(module);
                  comms::StoreExchange exchange(worlds[static_cast<size_t>(rank)], "test");
                  errors[static_cast<size_t>(rank)] = error_of([&] {
                    target.load(open_on_all(path, rank, std::ref(exchange)), std::ref(exchange));
                  });
                  for (const auto& tensor : module.parameters())
                    EXPECT_EQ(tensor.sum().item<double>(), 0);
                }),
            "");
  EXPECT_EQ(errors[0], errors[1]);
  EXPECT_EQ(errors[0],
            "the checkpoint does not fit the model:\n"
            "error[PW113]: tensor `a`: expected F32[3, 2], got F32[2, 3]\n"
            "error[PW113]: tensor `c`: expected F64[2], got F32[2]\n"
            "error[PW113]: expected tensor `new` of F32[5], got none\n"
            "error[PW113]: unexpected tensor `gone` of F32[2]");
}

TEST(TrainingState, AnotherOptimizer) {
  Trained trained;
  const fs::path path = save(trained.state, scratch_folder("optimizer"), 0, alone);
  Net net;
  torch::optim::SGD sgd(net.parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  TrainingState state;
  state.add_module(net);
  const auto load = [&] { state.load(open(path), alone); };
  load();  // weights alone
  EXPECT_TRUE(net.first->linear->weight.equal(trained.net->first->linear->weight));
  state.set_optimizer(sgd);
  EXPECT_EQ(error_of(load), "rank 0: the optimizer of the checkpoint: expected SGD, got AdamW");
  net.first->linear->weight.detach().zero_();
  state.load_weights(open(path), alone);
  EXPECT_TRUE(net.first->linear->weight.equal(trained.net->first->linear->weight));
  torch::optim::AdamW one_group(net.parameters());
  state.set_optimizer(one_group);
  EXPECT_EQ(error_of(load),
            "rank 0: the checkpoint has `optim.param_groups.1.amsgrad`: expected 1 parameter "
            "groups");
}

template <typename Optimizer, typename Options>
void expect_same_training(const Options& options) {
  at::manual_seed(3);
  Net one, two;
  Optimizer first(one.parameters(), options), second(two.parameters(), options);
  TrainingState from, to;
  from.add_module(one);
  from.set_optimizer(first);
  to.add_module(two);
  to.set_optimizer(second);
  const fs::path path = [&] {
    step(first);
    return save(from, scratch_folder("kinds"), 0, alone);
  }();
  step(second);  // state that is replaced
  to.load(open(path), alone);
  for (torch::optim::Optimizer* optimizer :
       {(torch::optim::Optimizer*)&first, (torch::optim::Optimizer*)&second}) {
    at::manual_seed(4);
    step(*optimizer);
  }
  for (size_t i = 0; i < one.parameters().size(); ++i)
    EXPECT_TRUE(one.parameters()[i].equal(two.parameters()[i])) << i;
}

TEST(TrainingState, OptimizersGoOnAsBefore) {
  using namespace torch::optim;
  expect_same_training<SGD>(SGDOptions(0.1).momentum(0.9).nesterov(true));
  expect_same_training<SGD>(SGDOptions(0.1));
  expect_same_training<Adam>(AdamOptions(0.1).amsgrad(true));
  expect_same_training<AdamW>(AdamWOptions(0.1));
}

// Saved before the first step, or frozen: the optimizer has no state, also after loading.
TEST(TrainingState, AParameterWithoutState) {
  Net net;
  net.first->linear->weight.set_requires_grad(false);
  torch::optim::AdamW optimizer(net.parameters());
  TrainingState state;
  state.add_module(net);
  state.set_optimizer(optimizer);
  const fs::path folder = scratch_folder("none");
  const fs::path fresh = save(state, folder, 0, alone);
  step(optimizer);
  optimizer.state().erase(net.first->linear->weight.unsafeGetTensorImpl());
  const fs::path trained = save(state, scratch_folder("some"), 0, alone);
  EXPECT_EQ(optimizer.state().size(), 3u);
  state.load(open(fresh), alone);
  EXPECT_EQ(optimizer.state().size(), 0u);
  state.load(open(trained), alone);
  EXPECT_EQ(optimizer.state().size(), 3u);
}

TEST(TrainingState, WrongUse) {
  Net net;
  TrainingState state;
  state.add_module(net);
  EXPECT_EQ(error_of([&] { state.add_module(*net.first, {}, "first."); }),
            "checkpoint: expected different names, got `first.linear.weight` twice");
  // Called tied, but not tied: two tensors of one name.
  EXPECT_EQ(error_of([&] {
              state.add_module(*net.first, {}, "again.", {{"scale", "first.scale"}});
            }),
            "checkpoint: expected different names, got `first.scale` twice");
  EXPECT_EQ(error_of([&] {
              TrainingState().add_module(*net.first, {}, "", {{"bias", "b"}});
            }),
            "checkpoint: the module has no tied parameter `bias`");
  Net other;
  torch::optim::AdamW stranger(other.parameters());
  EXPECT_EQ(error_of([&] { state.set_optimizer(stranger); }),
            "checkpoint: the optimizer has a parameter of sizes [7, 5]: expected those of modules "
            "that were added before");
  const layout::Layout layout(layout::MeshLayout({{"dp_shard", 2}}),
                              {layout::TensorPlacement::shard(0)}, {7, 5});
  TrainingState sharded;
  EXPECT_THROW(sharded.add_module(*net.first, {{"linear.weight", {layout, 0}}}), ContractError);

  // A float counts to 2^24.
  torch::optim::AdamW optimizer(net.parameters());
  step(optimizer);
  for (auto& [parameter, of] : optimizer.state())
    static_cast<torch::optim::AdamWParamState&>(*of).step((1 << 24) + 1);
  state.set_optimizer(optimizer);
  EXPECT_EQ(error_of([&] { state.snapshot(); }),
            "the optimizer's count of steps: expected at most 16777216, which a float can store, "
            "got 16777217");
}

}  // namespace
}  // namespace pipewright::checkpoint
