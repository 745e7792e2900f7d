// Whole tensors of parameters that several wrappers distribute: reading and replacing them in any
// state, what ends with a wrapper, errors; and the memory
// per rank.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>

#include "pipewright/comms/mesh.h"
#include "pipewright/ddp/replicate.h"
#include "pipewright/fsdp/fully_shard.h"
#include "pipewright/ir/errors.h"
#include "pipewright/modules/distribution.h"
#include "pipewright/modules/forward.h"
#include "pipewright/tp/parallelize.h"
#include "tests/support/meter/meter.h"
#include "tests/support/ranks/ground.h"
#include "tests/support/training/modules.h"
#include "tests/support/training/on_ranks.h"

namespace pipewright::tp {
namespace {

namespace nn = torch::nn;
using comms::Mesh;
using modules::full_tensor;
using modules::layout_of;
using modules::set_full_tensor;
using tests::ModulePtr;
using tests::on_ranks;
using tests::Rank;

const Plan kPlan = {{"in_proj", colwise_parallel()}, {"out_proj", rowwise_parallel()}};
using Wrap = std::function<std::shared_ptr<void>(tests::TestModule&, Mesh&)>;

// New values for all parameters: every rank has them then, and the forward is that of a plain copy.
void expect_replaceable(const std::vector<layout::MeshDim>& dims, const Wrap& wrap) {
  int ranks = 1;
  for (const layout::MeshDim& dim : dims) ranks *= dim.size;
  on_ranks(ranks, [&](Rank& self) {
    Mesh mesh(*self.world, dims);
    for (const int64_t dim : {3, 4}) {
      const ModulePtr other = tests::make_mlp(dim, 3, 7), module = tests::make_mlp(dim, 3, 8);
      const auto tp = parallelize(*module, kPlan, mesh, "tp");
      const auto unit = wrap(*module, mesh);
      const at::Tensor input = tests::random_input({2, dim}, 9);
      const auto values = other->named_parameters();
      for (const bool after_forward : {false, true}) {
        // Without a backward: fully_shard keeps what it has gathered.
        if (after_forward) static_cast<void>(modules::forward(module, input));
        for (const auto& named : module->named_parameters()) {
          const at::Tensor whole = values[named.key()].detach() + (after_forward ? 1 : 0);
          set_full_tensor(named.value(), whole);
          EXPECT_TRUE(at::equal(full_tensor(named.value()), whole)) << named.key();
          EXPECT_EQ(
              named.value().sizes(),
              at::IntArrayRef(
                  layout_of(named.value()).layout.local_shape(layout_of(named.value()).rank)));
        }
        const torch::NoGradGuard no_grad;
        if (after_forward) {
          for (at::Tensor& parameter : other->parameters()) parameter.add_(1);
        }
        EXPECT_TRUE(at::allclose(modules::forward(module, input), other->forward(input)));
      }
    }
  });
}

TEST(FullTensor, IsReadAndReplacedUnderAllWrappers) {
  expect_replaceable({{"dp", 2}, {"tp", 2}}, [](tests::TestModule& module, Mesh& mesh) {
    return fsdp::fully_shard(module, mesh, {"dp"}, {.reshard_after_forward = false});
  });
  expect_replaceable({{"tp", 2}, {"dp", 2}}, [](tests::TestModule& module, Mesh& mesh) {
    return fsdp::fully_shard(module, mesh, {"dp"}, {.reshard_after_forward = false});
  });
  expect_replaceable({{"replicas", 2}, {"shards", 2}, {"tp", 2}},
                     [](tests::TestModule& module, Mesh& mesh) {
                       return fsdp::fully_shard(module, mesh, {"replicas", "shards"});
                     });
  expect_replaceable({{"dp", 2}, {"tp", 2}}, [](tests::TestModule& module, Mesh& mesh) {
    return ddp::replicate(module, mesh, {"dp"});
  });
}

// A module may be cast or loaded while it is sharded; the next gather adopts that.
TEST(FullTensor, OfAParameterThatWasCastOrReplaced) {
  on_ranks(2, [](Rank& self) {
    nn::Linear linear(4, 6);
    linear->to(tests::here());
    const auto unit = fsdp::fully_shard(*linear, self.group);
    const at::Tensor before = full_tensor(linear->weight);
    linear->to(at::kDouble);
    EXPECT_TRUE(at::equal(full_tensor(linear->weight), before.to(at::kDouble)));
    const torch::NoGradGuard no_grad;
    linear->weight.set_data(at::ones({6, 4}, tests::here(at::kDouble)));
    EXPECT_TRUE(at::equal(full_tensor(linear->weight), at::ones({6, 4}, linear->weight.options())));
  });
}

TEST(FullTensor, OfBuffersIgnoredParametersAndPlainTensors) {
  on_ranks(2, [](Rank& self) {
    nn::Sequential module(nn::Linear(4, 4), nn::BatchNorm1d(4));
    module->to(tests::here());
    const at::Tensor weight = module->named_parameters()["0.weight"];
    const auto unit = fsdp::fully_shard(*module, self.group, {.ignored_params = {weight}});
    const auto layouts = modules::layouts(*module);
    const auto text_of = [&](const char* name) { return layouts.at(name).layout.text(); };
    EXPECT_EQ(text_of("0.weight"), "[4, 4] dp_replicate=1:replicate dp_shard=2:replicate");
    EXPECT_EQ(text_of("1.weight"), "[4] dp_replicate=1:replicate dp_shard=2:shard(0)");
    EXPECT_EQ(text_of("1.running_mean"), "[4] dp_replicate=1:replicate dp_shard=2:replicate");
    EXPECT_TRUE(at::equal(full_tensor(weight), weight));
    const at::Tensor plain = at::ones({3});
    EXPECT_EQ(layout_of(plain).layout.text(), "[3]");
    EXPECT_TRUE(at::equal(full_tensor(plain), plain));
    set_full_tensor(plain, at::zeros({3}));
    EXPECT_TRUE(at::equal(plain, at::zeros({3})));
  });
}

TEST(FullTensor, ADistributionEndsWithItsWrapper) {
  on_ranks(2, [](Rank& self) {
    nn::Linear linear(4, 6);
    linear->to(tests::here());
    auto unit = ddp::replicate(*linear, self.group);
    EXPECT_EQ(layout_of(linear->weight).layout.text(), "[6, 4] dp_replicate=2:replicate");
    unit.reset();
    EXPECT_EQ(layout_of(linear->weight).layout.text(), "[6, 4]");
  });
}

TEST(FullTensor, Errors) {
  on_ranks(2, [](Rank& self) {
    nn::Linear linear(4, 6);
    linear->to(tests::here());
    const auto unit = fsdp::fully_shard(*linear, self.group);
    const auto error_of = [](const std::function<void()>& call) {
      try {
        call();
      } catch (const std::exception& error) {
        return std::string(error.what());
      }
      return std::string("no error");
    };
    EXPECT_EQ(error_of([&] {
                set_full_tensor(linear->weight, at::ones({3, 4}));
              }),
              "set_full_tensor: expected sizes [6, 4], got [3, 4]");
    EXPECT_EQ(error_of([&] {
                static_cast<void>(full_tensor(linear->weight, at::ones({6, 4})));
              }),
              "full_tensor: expected this rank's part, [3, 4], got [6, 4]");
  });
}

// The peak of a training step, of which a rank's parameters and optimizer state are 1 / (tp x dp)
// of the whole ones. Besides them there are gradients, which are as large as the parameters at the
// end of backward and are subtracted, the gathered parameters of two of 128 layers, the gradients
// of three, and activations: within 5% together. Measured over all ranks, because one thread may
// free what another has allocated.
TEST(Memory, PeakOfParametersAndOptimizerState) {
  constexpr int kLayers = 128;
  constexpr int64_t kDim = 96;
  struct Stack : nn::Module {
    std::vector<ModulePtr> layers;
    at::Tensor forward(const at::Tensor& input) {
      at::Tensor x = input;
      for (const ModulePtr& layer : layers) x = modules::forward(layer, x);
      return x;
    }
  };
  for (const auto& [dp, tp_size] : {std::pair{2, 2}, std::pair{2, 4}}) {
    tests::Meter meter;
    on_ranks(dp * tp_size, [&](Rank& self) {
      const tests::Meter counts_here = tests::Meter::together_with(meter);
      Mesh mesh(*self.world, {{"dp", dp}, {"tp", tp_size}});
      const auto module = std::make_shared<Stack>();
      int64_t whole = 0;  // bytes of the parameters
      std::vector<std::shared_ptr<void>> wrappers;
      for (int i = 0; i < kLayers; ++i) {
        const ModulePtr layer =
            module->register_module(std::to_string(i), tests::make_mlp(kDim, 4, 1));
        for (const at::Tensor& weight : layer->parameters())
          whole += static_cast<int64_t>(weight.nbytes());
        wrappers.push_back(parallelize(*layer, kPlan, mesh, "tp"));
        wrappers.push_back(fsdp::fully_shard(*layer, mesh, {"dp"}));
        module->layers.push_back(layer);
      }
      wrappers.push_back(fsdp::fully_shard(*module, mesh, {"dp"}));
      torch::optim::Adam optimizer(module->parameters(), torch::optim::AdamOptions(1e-2));
      for (int step = 0; step < 3; ++step) {
        optimizer.zero_grad();
        tests::on_first_rank_alone(self, [&] { meter.restart_peak(); });
        const at::Tensor input = tests::random_input({1, kDim}, 2);
        modules::forward(module, input).sum().backward();
        optimizer.step();
        tests::on_first_rank_alone(self, [&] {
          if (step == 0) return;  // in which the optimizer makes its state
          const double ours = static_cast<double>(meter.peak() - whole);
          EXPECT_GE(ours / static_cast<double>(3 * whole), 1) << step;
          EXPECT_LE(ours / static_cast<double>(3 * whole), 1.05) << step;
        });
      }
    });
  }
}

// The chunks of 5 features over 2 ranks are 3 and 2, of which only the second can be halved: all
// ranks refuse, because those of one data-parallel group would otherwise go on alone.
TEST(Errors, APlacementThatFitsSomePartsOnly) {
  on_ranks(4, [](Rank& self) {
    Mesh mesh(*self.world, {{"dp", 2}, {"tp", 2}});
    nn::Linear linear(nn::LinearOptions(5, 4).bias(false));
    const auto tp = parallelize(*linear, {{"", rowwise_parallel()}}, mesh, "tp");
    const auto shard_along = [&](int64_t dim) {
      return fsdp::fully_shard(*linear, mesh, {"dp"},
                               {.shard_placement_fn = [=](const at::Tensor&) { return dim; }});
    };
    try {
      const auto unit = shard_along(1);
      ADD_FAILURE() << "rank " << self.rank;
    } catch (const std::invalid_argument& error) {
      EXPECT_EQ(error.what(),
                c10::str("fully_shard: parameter `weight`, Float [4, ",
                         mesh.coordinate("tp") == 0 ? "3] on cpu: dimension 1 "
                                                    : "2] on cpu: dimension 1, of 3 elements on "
                                                      "other ranks, ",
                         "does not divide evenly by 2 ranks; only dimension 0 may be uneven"));
    }
    EXPECT_EQ(linear->weight.sizes(), at::IntArrayRef({4, mesh.coordinate("tp") == 0 ? 3 : 2}));
    const auto unit = shard_along(0);
    EXPECT_EQ(linear->weight.size(0), 2);
  });
}

}  // namespace
}  // namespace pipewright::tp
