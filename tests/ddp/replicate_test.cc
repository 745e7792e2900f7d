// Tests of replicate beyond those of PyTorch (replicate_training_test): memory, buckets, groups,
// casts, hooks.
#include "pipewright/ddp/replicate.h"

#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>

#include "pipewright/autograd/checkpoint.h"
#include "pipewright/modules/forward.h"
#include "tests/ddp/branches.h"
#include "tests/ddp/wrap.h"
#include "tests/support/meter/meter.h"
#include "tests/support/ranks/ground.h"
#include "tests/support/recording/recording_backend.h"
#include "tests/support/training/modules.h"
#include "tests/support/training/on_ranks.h"
#include "tests/support/training/parity.h"

namespace pipewright::ddp {
namespace {

using comms::BackendPtr;
using tests::average_grads;
using tests::Branches;
using tests::data_seed;
using tests::difference;
using tests::ModulePtr;
using tests::on_ranks;
using tests::random_input;
using tests::Rank;
using tests::wrap;

// Counts both ranks together, because one thread may free what the other has allocated.
TEST(Replicate, MemoryHoldsOneCopyOfParametersAndGradients) {
  const tests::Meter meter;
  on_ranks(2, [&](Rank& self) {
    const tests::Meter counts_here = tests::Meter::together_with(meter);
    const ModulePtr module = tests::make_mlps(32, 3, 42);
    int64_t bytes = 0;  // the parameters of both ranks
    for (const at::Tensor& weight : module->parameters())
      bytes += 2 * static_cast<int64_t>(weight.nbytes());
    tests::on_first_rank_alone(self, [&] { EXPECT_EQ(meter.bytes(), bytes); });
    const auto units = wrap(*module, self.group);
    // The parameters stay where they are.
    tests::on_first_rank_alone(self, [&] { EXPECT_EQ(meter.bytes(), bytes); });
    for (int iteration = 0; iteration < 3; ++iteration) {
      module->zero_grad(iteration % 2 == 0);
      module->forward(random_input({2, 32}, data_seed(iteration, self.rank))).sum().backward();
      tests::on_first_rank_alone(self, [&] { EXPECT_EQ(meter.bytes(), 2 * bytes) << iteration; });
    }
  });
}

// Rebuilding buckets does not need a second copy: old buckets are freed as gradients move.
TEST(Replicate, PeakMemoryIsOneCopyPlusOneBucket) {
  constexpr int64_t kSize = 1024, kCount = 16, kRanks = 2;
  constexpr int64_t kBytes = kSize * 8;
  tests::Meter meter;
  on_ranks(kRanks, [&](Rank& self) {
    torch::nn::Module module;
    std::vector<at::Tensor> weights;
    for (int i = 0; i < kCount; ++i) {
      weights.push_back(
          module.register_parameter("w" + std::to_string(i), at::ones({kSize}, at::kDouble)));
    }
    const double two = 2.0 * kBytes / (1 << 20);  // two gradients per bucket
    const auto unit =
        replicate(module, self.group, {.bucket_cap_mb = two, .first_bucket_cap_mb = two});
    const auto names = unit->buckets();
    const tests::Meter counts_here = tests::Meter::together_with(meter);
    for (int iteration = 0; iteration < 3; ++iteration) {
      tests::on_first_rank_alone(self, [&] { meter.restart_peak(); });
      module.zero_grad();
      // Readiness in another order than the initial buckets assume: w1 w0, w3 w2...
      at::Tensor sum = at::zeros({}, at::kDouble);
      for (int i = kCount - 1; i >= 0; --i)
        sum = sum + at::dot(weights[static_cast<size_t>(i)], weights[static_cast<size_t>(i)]);
      sum.backward();
      tests::on_first_rank_alone(self, [&] {
        EXPECT_LE(meter.bytes(), kRanks * (kCount + 1) * kBytes);
        // Plus one bucket, and the gradient that autograd has just allocated outside of its bucket.
        EXPECT_LE(meter.peak(), kRanks * (kCount + 6) * kBytes);
      });
    }
    EXPECT_NE(unit->buckets(), names);
  });
}

// Reductions start while backward still runs, in the order of the buckets.
TEST(Replicate, ReductionOverlapsBackward) {
  on_ranks(2, [](Rank& self) {
    const ModulePtr module = tests::make_mlps(16, 3, 42);
    const auto units = wrap(*module, self.group);
    size_t calls_when_first_layer_is_ready = 0;
    self.log->clear();
    const at::Tensor x = random_input({2, 16}, 1);
    const at::Tensor input = x.clone().requires_grad_();
    input.register_hook([&](const at::TensorBase&) {
      calls_when_first_layer_is_ready = static_cast<size_t>(self.log->count("allreduce"));
    });
    module->forward(input).sum().backward();
    // The reductions of all MLPs start before the first layer's input gradient is known.
    EXPECT_GE(calls_when_first_layer_is_ready, 3u);
    EXPECT_EQ(self.log->count("allreduce"), 4);
  });
}

// Parts may use a different group than the root, as experts do: the root a group of one rank and
// the parts a group of two, or vice versa.
TEST(Replicate, NestedCallsOverOtherGroups) {
  on_ranks(2, [](Rank& self) {
    const std::vector<int> alone = {self.rank}, both = {0, 1};
    for (const bool root_alone : {true, false}) {
      for (const bool driven : {false, true}) {
        for (const bool find : {false, true}) {
          const auto lone = self.world->make_group("alone" + std::to_string(self.rank), alone);
          const ModulePtr plain = tests::make_mlps(4, 2, 42), module = tests::make_mlps(4, 2, 42);
          const Options options{.find_unused_parameters = find};
          std::vector<std::shared_ptr<Replicated>> units;
          for (const auto& part : module->parts())
            units.push_back(replicate(*part, root_alone ? self.group : lone, options));
          units.push_back(replicate(*module, root_alone ? lone : self.group, options));
          const auto stage = driven ? units.back()->data_parallel() : nullptr;
          const at::Tensor input = random_input({2, 4}, data_seed(0, self.rank));
          plain->forward(input).sum().backward();
          if (stage) stage->before_backward(0, /*last=*/true);
          module->forward(input).sum().backward();
          if (stage) stage->reduce_grad();
          if (stage) stage->wait_reduce();
          for (const auto& named : plain->named_parameters()) {
            const bool in_part = named.key().starts_with("mlp");
            if (in_part != root_alone) continue;
            std::vector<at::Tensor> grads = {named.value().grad()};
            self.by_hand->allreduce(grads)->wait();
            grads[0].div_(2);
          }
          EXPECT_EQ(difference(*plain, *module), "") << root_alone << driven << find;
        }
      }
    }
  });
}

// The outermost call has no parameters, or none that require grad.
TEST(Replicate, RootWithoutParameters) {
  on_ranks(2, [](Rank& self) {
    for (const bool find : {false, true}) {
      const ModulePtr plain = tests::make_mlp(4, 2, 42), module = tests::make_mlp(4, 2, 42);
      const Options options{.find_unused_parameters = find};
      const auto inner = replicate(*module, self.group, options);
      const auto outer = replicate(*module, self.group, options);
      for (const bool driven : {false, true}) {
        plain->zero_grad();
        module->zero_grad();
        const auto stage = driven ? outer->data_parallel() : nullptr;
        const at::Tensor input = random_input({2, 4}, data_seed(driven, self.rank));
        plain->forward(input).sum().backward();
        if (stage) stage->before_backward(0, /*last=*/true);
        module->forward(input).sum().backward();
        if (stage) stage->reduce_grad();
        if (stage) stage->wait_reduce();
        average_grads(*plain, *self.by_hand);
        EXPECT_EQ(difference(*plain, *module), "") << find << driven;
      }
    }
    torch::nn::Linear frozen(2, 2);
    frozen->to(tests::here());
    for (at::Tensor& weight : frozen->parameters()) weight.set_requires_grad(false);
    const auto unit = replicate(*frozen, self.group);
    const auto stage = unit->data_parallel();
    stage->before_backward(0, /*last=*/true);
    stage->reduce_grad();
    stage->wait_reduce();
  });
}

// After the wrap: cast to another dtype, then some parameters frozen and unfrozen. In PyTorch
// test_to_float64_after_init. With parts replicated separately, and frozen at the wrap.
TEST(Replicate, CastsAndFreezingAfterTheWrap) {
  for (const bool parts : {false, true}) {
    on_ranks(2, [parts](Rank& self) {
      const ModulePtr plain = tests::make_mlps(4, 2, 42), module = tests::make_mlps(4, 2, 42);
      const auto set = [&](bool trained) {
        for (const ModulePtr& each : {plain, module}) {
          for (at::Tensor& weight : each->parts()[1]->parameters())
            weight.set_requires_grad(trained);
        }
      };
      for (const ModulePtr& each : {plain, module}) each->to(at::kFloat);
      set(false);
      std::vector<std::shared_ptr<Replicated>> units;
      if (parts)
        units = tests::wrap(*module, self.group);
      else
        units.push_back(replicate(*module, self.group));
      for (int iteration = 0; iteration < 6; ++iteration) {
        if (iteration == 1) {
          for (const ModulePtr& each : {plain, module}) each->to(at::kDouble);
        }
        set(iteration >= 2 && iteration != 4);
        for (const ModulePtr& each : {plain, module}) each->zero_grad();
        const at::Tensor input = random_input({2, 4}, tests::data_seed(iteration, self.rank))
                                     .to(iteration == 0 ? at::kFloat : at::kDouble);
        plain->forward(input).sum().backward();
        modules::forward(module, input).sum().backward();
        average_grads(*plain, *self.by_hand);
        if (iteration == 0) continue;  // float: not equal to 1e-9
        EXPECT_EQ(difference(*plain, *module), "") << iteration;
      }
    });
  }
}

TEST(Replicate, BucketsFillInTheOrderOfReadiness) {
  on_ranks(2, [](Rank& self) {
    const ModulePtr module = tests::make_two_linears({{256, 256}, {256, 256}, {256, 256}}, 42);
    const auto unit =
        replicate(*module, self.group, {.bucket_cap_mb = 1, .first_bucket_cap_mb = 0.2});
    const std::vector<std::vector<std::string>> reversed = {
        {"layer2.bias", "layer2.weight"},
        {"layer1.bias", "layer1.weight", "layer0.bias", "layer0.weight"}};
    EXPECT_EQ(unit->buckets(), reversed);
    self.log->clear();
    module->forward(random_input({2, 256}, 1)).sum().backward();
    EXPECT_EQ(self.log->count("allreduce"), 2);
    EXPECT_EQ(unit->buckets().size(), 2u);
    // Gradients are views of the buckets, so there is one copy of them.
    size_t bytes = 0;
    for (const at::Tensor& weight : module->parameters()) bytes += weight.nbytes();
    EXPECT_EQ(unit->bucket_bytes(), bytes);
    EXPECT_EQ(module->parameters()[0].grad().storage().data_ptr().get(),
              module->parameters()[1].grad().storage().data_ptr().get());
  });
}

struct Product : tests::TestModule {
  Product() {
    for (const char* name : {"a", "b", "c"})
      weights.push_back(register_parameter(name, at::full({2}, 2.0, tests::here(at::kDouble))));
  }
  // The gradient of `a` is ready first.
  at::Tensor forward(const at::Tensor& input) override {
    return input * weights[2] * weights[1] * weights[0];
  }
  std::vector<at::Tensor> weights;
};

TEST(Replicate, BucketsAreRebuiltInTheOrderOfReadiness) {
  on_ranks(2, [](Rank& self) {
    using Names = std::vector<std::vector<std::string>>;
    Product module;
    const auto unit = replicate(module, self.group, {.bucket_cap_mb = 0, .first_bucket_cap_mb = 0});
    EXPECT_EQ(unit->buckets(), (Names{{"c"}, {"b"}, {"a"}}));
    for (int iteration = 0; iteration < 2; ++iteration) {
      module.zero_grad();
      module.forward(at::full({2}, self.rank + 1.0, tests::here(at::kDouble))).sum().backward();
      EXPECT_EQ(unit->buckets(), (Names{{"a"}, {"b"}, {"c"}}));
      // The mean of 1 and 2, times the other two weights.
      for (const at::Tensor& weight : module.weights)
        EXPECT_TRUE(at::equal(weight.grad(), at::full({2}, 6.0, tests::here(at::kDouble))));
    }
  });
}

// Everything with weights is checkpointed, so the last backward to run is a nested one.
TEST(Replicate, CheckpointedTail) {
  on_ranks(2, [](Rank& self) {
    const ModulePtr plain = tests::make_mlps(8, 3, 42), module = tests::make_mlps(8, 3, 42);
    const auto unit = replicate(*module, self.group);
    for (int iteration = 0; iteration < 3; ++iteration) {
      plain->zero_grad();
      module->zero_grad();
      const at::Tensor input = random_input({2, 8}, data_seed(iteration, self.rank));
      plain->forward(input).sum().backward();
      const auto part = [&](const std::vector<at::Tensor>& in) {
        return std::vector{module->forward(in[0])};
      };
      autograd::checkpoint(part, {input * 1})[0].sum().backward();
      average_grads(*plain, *self.by_hand);
      EXPECT_EQ(difference(*plain, *module), "") << iteration;
    }
  });
  // Several checkpointed parts, each with its own nested backward.
  on_ranks(2, [](Rank& self) {
    const ModulePtr plain = tests::make_mlps(8, 3, 42), module = tests::make_mlps(8, 3, 42);
    const auto unit = replicate(*module, self.group);
    const auto weights = module->parameters();
    const at::Tensor input = random_input({2, 8}, data_seed(0, self.rank));
    plain->forward(input).sum().backward();
    at::Tensor x = input * 1;
    const auto first = [&](const std::vector<at::Tensor>& in) {
      return std::vector{at::linear(in[0], weights[0], weights[1])};
    };
    x = autograd::checkpoint(first, {x})[0];
    for (const auto& mlp : module->parts())
      x = autograd::checkpoint(std::dynamic_pointer_cast<tests::TestModule>(mlp), x);
    x.sum().backward();
    average_grads(*plain, *self.by_hand);
    EXPECT_EQ(difference(*plain, *module), "");
  });
}

TEST(Replicate, NoSyncAccumulates) {
  on_ranks(2, [](Rank& self) {
    const ModulePtr plain = tests::make_mlp(4, 2, 42), module = tests::make_mlp(4, 2, 42);
    const auto unit = replicate(*module, self.group);
    for (const int microbatch : {0, 1})
      plain->forward(random_input({2, 4}, data_seed(microbatch, self.rank))).sum().backward();
    average_grads(*plain, *self.by_hand);
    self.log->clear();
    {
      const NoSync no_sync(*unit);
      module->forward(random_input({2, 4}, data_seed(0, self.rank))).sum().backward();
      EXPECT_EQ(self.log->count("allreduce"), 0);
    }
    module->forward(random_input({2, 4}, data_seed(1, self.rank))).sum().backward();
    EXPECT_EQ(self.log->count("allreduce"), 1);
    EXPECT_TRUE(unit->requires_gradient_sync());
    EXPECT_EQ(difference(*plain, *module), "");
  });
}

// Ignored parameters keep this rank's values and gradients.
TEST(Replicate, IgnoredParameters) {
  on_ranks(2, [](Rank& self) {
    Branches module;
    module.weights[1].detach().fill_(self.rank);
    const auto unit = replicate(module, self.group, {.ignored_params = {module.weights[1]}});
    EXPECT_TRUE(at::equal(module.weights[1], at::full({2}, double(self.rank), tests::here())));
    (module.weights[0] + module.weights[1] + module.weights[2]).sum().mul(self.rank + 1).backward();
    EXPECT_TRUE(at::equal(module.weights[0].grad(), at::full({2}, 1.5, tests::here())));
    EXPECT_TRUE(at::equal(module.weights[1].grad(), at::full({2}, self.rank + 1.0, tests::here())));
    EXPECT_EQ(unit->buckets(), (std::vector<std::vector<std::string>>{{"c", "a"}}));
  });
}

TEST(Replicate, BuffersAreBroadcastFromRankZero) {
  on_ranks(2, [](Rank& self) {
    torch::nn::BatchNorm1d norm(3);
    norm->to(tests::here());
    norm->running_mean.fill_(self.rank);
    const auto unit = replicate(*norm, self.group);
    EXPECT_TRUE(at::equal(norm->running_mean, at::zeros({3}, tests::here())));
    const at::Tensor input = random_input({4, 3}, data_seed(0, self.rank)).to(at::kFloat);
    modules::forward(norm, input).sum().backward();
    norm->eval();  // does not change the buffers
    modules::forward(norm, input);
    at::Tensor mine = norm->running_mean.clone(), all = at::empty({6}, tests::here());
    self.by_hand->_allgather_base(all, mine)->wait();
    EXPECT_TRUE(at::equal(all.slice(0, 0, 3), all.slice(0, 3, 6)));
    EXPECT_FALSE(at::equal(norm->running_mean, at::zeros({3}, tests::here())));
    // A step of the executor starts with the same broadcast.
    norm->running_mean.fill_(self.rank + 7);
    unit->data_parallel()->step_begins();
    EXPECT_TRUE(at::equal(norm->running_mean, at::full({3}, 7.0, tests::here())));
  });
}

// A forward inside another one does not broadcast again, nor does that of checkpointing.
TEST(Replicate, BuffersAreBroadcastOncePerForward) {
  struct Model : torch::nn::Module {
    at::Tensor forward(const at::Tensor& x) {
      const auto part = [this](const std::vector<at::Tensor>& in) {
        return std::vector{modules::forward(norm, in[0])};
      };
      return autograd::checkpoint(part, {x})[0];
    }
    torch::nn::BatchNorm1d norm = register_module("norm", torch::nn::BatchNorm1d(3));
  };
  on_ranks(2, [](Rank& self) {
    const auto model = std::make_shared<Model>();
    model->to(tests::here());
    const auto inner = replicate(*model->norm, self.group), outer = replicate(*model, self.group);
    const int64_t buffers = static_cast<int64_t>(model->buffers().size());
    for (const bool whole : {true, false}) {
      const at::Tensor x = at::randn({4, 3}, tests::here()).requires_grad_();
      self.log->clear();
      (whole ? modules::forward(model, x) : modules::forward(model->norm, x)).sum().backward();
      // The first reduction is followed by a broadcast of the order of the buckets.
      EXPECT_EQ(self.log->count("broadcast"), buffers + (whole ? 1 : 0));
    }
  });
}

TEST(Replicate, CommHooks) {
  for (const auto& [hook, tolerance] :
       {std::pair{fp16_compress_hook(), 2e-3}, std::pair{bf16_compress_hook(), 2e-2}}) {
    on_ranks(2, [&, hook = hook, tolerance = tolerance](Rank& self) {
      const ModulePtr plain = tests::make_mlp(8, 4, 42), module = tests::make_mlp(8, 4, 42);
      const auto unit = replicate(*module, self.group, {.comm_hook = hook});
      self.log->clear();
      for (const ModulePtr& each : {plain, module})
        each->forward(random_input({4, 8}, data_seed(0, self.rank))).sum().backward();
      average_grads(*plain, *self.by_hand);
      size_t bytes = 0;
      for (size_t i = 0; i < plain->parameters().size(); ++i) {
        const at::Tensor want = plain->parameters()[i].grad(), got = module->parameters()[i].grad();
        EXPECT_LE((want - got).abs().max().item<double>(),
                  tolerance * (1 + want.abs().max().item<double>()));
        bytes += want.nbytes();
      }
      EXPECT_EQ(self.log->bytes("allreduce"), static_cast<int64_t>(bytes / 4));
    });
  }
  // A hook of the user.
  on_ranks(2, [](Rank& self) {
    const ModulePtr module = tests::make_mlp(4, 2, 42);
    const auto unit = replicate(
        *module, self.group,
        {.comm_hook = [](const at::Tensor& bucket, const BackendPtr&) -> std::function<void()> {
          return [bucket] { bucket.fill_(7); };
        }});
    module->forward(random_input({2, 4}, 1)).sum().backward();
    for (const at::Tensor& weight : module->parameters())
      EXPECT_TRUE(at::equal(weight.grad(), at::full_like(weight, 7)));
  });
}

TEST(Replicate, FrozenParametersAreNotReduced) {
  on_ranks(2, [](Rank& self) {
    const ModulePtr module = tests::make_mlp(4, 2, 42 + static_cast<uint64_t>(self.rank));
    module->parameters()[0].set_requires_grad(false);
    const auto unit = replicate(*module, self.group);
    EXPECT_TRUE(at::equal(module->parameters()[0], tests::make_mlp(4, 2, 42)->parameters()[0]));
    module->forward(random_input({2, 4}, 1)).sum().backward();
    EXPECT_FALSE(module->parameters()[0].grad().defined());
    EXPECT_EQ(unit->buckets()[0].size(), 3u);
  });
}

}  // namespace
}  // namespace pipewright::ddp
