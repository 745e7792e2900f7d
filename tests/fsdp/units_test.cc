// Unusual models and training steps, compared with plain copies.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include <algorithm>
#include <map>
#include <tuple>

#include "pipewright/autograd/checkpoint.h"
#include "pipewright/ddp/replicate.h"
#include "pipewright/fsdp/fully_shard.h"
#include "tests/fsdp/branch.h"
#include "tests/fsdp/sharding.h"
#include "tests/support/ranks/ground.h"
#include "tests/support/training/modules.h"
#include "tests/support/training/on_ranks.h"
#include "tests/support/training/parity.h"

namespace pipewright::fsdp {
namespace {

using tests::blocks;
using tests::Branch;
using tests::Checkpointed;
using tests::data_seed;
using tests::difference;
using tests::events;
using tests::kReduce;
using tests::Loss;
using tests::mlps;
using tests::ModulePtr;
using tests::on_ranks;
using tests::Parity;
using tests::random_input;
using tests::random_tokens;
using tests::Rank;
using tests::Sharding;
using tests::shards_of;
using tests::sum_of;
using tests::sum_of_tokens;

// The children of a LibTorch container are called through their units.
TEST(FullyShard, Sequential) {
  on_ranks(2, [](Rank& self) {
    const auto make = [] {
      torch::nn::Sequential layers(torch::nn::Linear(4, 6), torch::nn::Linear(6, 4));
      layers->to(tests::here(), at::kDouble);
      for (const at::Tensor& weight : layers->parameters())
        weight.detach().copy_(random_input(weight.sizes(), 42));
      return layers;
    };
    torch::nn::Sequential plain = make(), module = make();
    const Sharding sharding(self, *module, {{"0"}, {"1"}}, {.reshard_after_forward = true});
    const at::Tensor x = random_input({2, 4}, data_seed(0, self.rank));
    EXPECT_THROW(module->forward(x), std::exception);
    const at::Tensor expected = plain->forward(x), got = modules::forward(module, x);
    EXPECT_TRUE(at::allclose(expected, got));
    expected.pow(2).sum().backward();
    got.pow(2).sum().backward();
    tests::average_grads(*plain, *self.by_hand);
    EXPECT_EQ(difference(*plain, *module, shards_of(self)), "");
  });
}

// A part of the model is replicated, and another one is not wrapped: its gradients stay this
// rank's.
TEST(FullyShard, ParametersOfAnotherWrapperAreIgnored) {
  on_ranks(2, [](Rank& self) {
    const ModulePtr plain = tests::make_mlps(8, 3, 42), module = tests::make_mlps(8, 3, 42);
    const auto replicated = ddp::replicate(*module->parts()[0], self.group);
    Options options{.reshard_after_forward = true};
    for (const size_t part : {size_t{0}, size_t{2}}) {
      for (const at::Tensor& weight : module->parts()[part]->parameters())
        options.ignored_params.push_back(weight);
    }
    const Sharding sharding(self, *module, {{"mlp1"}}, options);
    for (int iteration = 0; iteration < 3; ++iteration) {
      plain->zero_grad();
      module->zero_grad();
      const at::Tensor x = random_input({2, 8}, data_seed(iteration, self.rank));
      const at::Tensor expected = modules::forward(plain, x), got = modules::forward(module, x);
      EXPECT_TRUE(at::allclose(expected, got));
      expected.sum().backward();
      got.sum().backward();
      std::map<std::string, at::Tensor> own;
      for (const auto& [name, weight] : plain->named_parameters().pairs())
        own[name] = weight.grad().clone();
      tests::average_grads(*plain, *self.by_hand);
      for (const auto& [name, weight] : module->named_parameters().pairs()) {
        const at::Tensor average = plain->named_parameters()[name].grad();
        const at::Tensor wanted = name.starts_with("mlp0")   ? average
                                  : name.starts_with("mlp2") ? own[name]
                                                             : shards_of(self)(average);
        EXPECT_TRUE(at::allclose(weight.grad(), wanted, 1e-9, 1e-12)) << name;
      }
    }
  });
}

// Frozen weights before and after trained ones: they are still needed when all gradients are ready.
TEST(FullyShard, FrozenParameters) {
  for (const Checkpointed checkpointed : {Checkpointed::kNot, Checkpointed::kAround}) {
    on_ranks(2, [&](Rank& self) {
      const tests::TransformerArgs args{.layers = 3, .tied = false, .checkpointed = checkpointed};
      const ModulePtr plain = tests::make_transformer(args, 42);
      const ModulePtr module = tests::make_transformer(args, 42);
      for (const ModulePtr& each : {plain, module}) {
        size_t number = 0;
        for (const auto& [name, weight] : each->named_parameters().pairs()) {
          const bool trained = name.find("up") != std::string::npos || name == "output.weight";
          at::Tensor(weight).set_requires_grad(trained && number != 0);
          ++number;
        }
      }
      Parity parity(self, plain, module, shards_of(self));
      Sharding sharding(self, *module, blocks(3), {.reshard_after_forward = true});
      for (int iteration = 0; iteration < 3; ++iteration) {
        parity.zero_grad(iteration);
        parity.backward(sum_of_tokens({2, 8}, 8), iteration);
        parity.step();
        EXPECT_FALSE(module->named_parameters()["tokens.weight"].grad().defined());
      }
      // The gradients of shards share one buffer, in which frozen parameters take no space.
      int64_t trained = 0;
      for (const auto& weight : module->parts()[0]->parameters())
        trained += weight.requires_grad() ? weight.numel() : 0;
      const at::Tensor grad = module->named_parameters()["block0.up.weight"].grad();
      EXPECT_LE(static_cast<int64_t>(grad.storage().nbytes()), 8 * (trained + 2 * 8 + 16));
    });
  }
}

struct Branches : tests::TestModule {
  Branches() {
    for (int i = 0; i < 3; ++i) {
      branches.push_back(register_module("branch" + std::to_string(i),
                                         std::make_shared<Branch>(static_cast<uint64_t>(10 * i))));
    }
  }
  at::Tensor forward(const at::Tensor& input) override {
    at::Tensor x = input;
    for (const auto& branch : branches) x = at::tanh(modules::forward(branch, x));
    return x;
  }
  std::vector<std::shared_ptr<Branch>> branches;
};

// Ranks that use different parameters post the same collectives; a parameter that no rank used has
// no gradient.
TEST(FullyShard, UnusedParameters) {
  on_ranks(2, [](Rank& self) {
    const auto plain = std::make_shared<Branches>(), module = std::make_shared<Branches>();
    Parity parity(self, plain, module, shards_of(self));
    Sharding sharding(self, *module, {{"branch0"}, {"branch1"}, {"branch2"}},
                      {.reshard_after_forward = true});
    const Loss with_input_grads = [](const ModulePtr& each, int iteration, int rank) {
      const at::Tensor x = random_input({2, 3}, data_seed(iteration, rank));
      return forward(each, x.requires_grad_()).sum();
    };
    for (int iteration = 0; iteration < 4; ++iteration) {
      for (const auto& each : {plain, module}) {
        for (size_t i = 0; i < 3; ++i)
          each->branches[i]->used = (iteration + self.rank * static_cast<int>(i)) % 2;
      }
      self.log->clear();
      parity.zero_grad(0);
      parity.backward(with_input_grads, iteration);
      EXPECT_EQ(self.log->count(kReduce), 3);
      parity.step();
      EXPECT_FALSE(module->branches[0]->weights[2].grad().defined());
    }
  });
}

// Two losses on one trunk; the second backward runs through a retained graph.
TEST(FullyShard, TwoBackwardsThroughOneGraph) {
  on_ranks(2, [](Rank& self) {
    const tests::TransformerArgs args{.layers = 2};
    const ModulePtr plain = tests::make_transformer(args, 42);
    const ModulePtr module = tests::make_transformer(args, 42);
    Sharding sharding(self, *module, blocks(2), {.reshard_after_forward = true});
    for (int iteration = 0; iteration < 2; ++iteration) {
      for (const ModulePtr& each : {plain, module}) {
        each->zero_grad();
        const at::Tensor trunk =
            forward(each, random_tokens({2, 8}, 8, data_seed(iteration, self.rank)));
        trunk.square().sum().backward({}, /*retain_graph=*/true);
        trunk.sum().backward();
      }
      tests::average_grads(*plain, *self.by_hand);
      EXPECT_EQ(difference(*plain, *module, shards_of(self)), "") << iteration;
    }
  });
}

// Several outputs: one is an input passed through, one is used in several places.
TEST(FullyShard, SeveralOutputs) {
  struct Pair : torch::nn::Module {
    explicit Pair(uint64_t seed) : mlp(register_module("mlp", tests::make_mlp(4, 2, seed))) {}
    std::tuple<at::Tensor, at::Tensor> forward(const at::Tensor& x, const at::Tensor& bias) {
      return {mlp->forward(x) + bias, bias};
    }
    ModulePtr mlp;
  };
  struct Pairs : tests::TestModule {
    Pairs() {
      for (uint64_t i = 0; i < 3; ++i)
        pairs.push_back(register_module("pair" + std::to_string(i), std::make_shared<Pair>(i)));
      bias = register_parameter("bias", random_input({4}, 9));
    }
    at::Tensor forward(const at::Tensor& input) override {
      at::Tensor x = input, kept = input, passed = bias * 2;
      for (const auto& pair : pairs) {
        std::tie(x, passed) = modules::forward(pair, x, passed);
        kept = kept + x * x;
      }
      return kept + passed;
    }
    std::vector<std::shared_ptr<Pair>> pairs;
    at::Tensor bias;
  };
  on_ranks(2, [](Rank& self) {
    const auto plain = std::make_shared<Pairs>(), module = std::make_shared<Pairs>();
    Parity parity(self, plain, module, shards_of(self));
    Sharding sharding(self, *module, {{"pair0"}, {"pair1"}, {"pair2"}}, {});
    for (int iteration = 0; iteration < 3; ++iteration) {
      parity.zero_grad(iteration);
      parity.backward(sum_of({2, 4}), iteration);
      parity.step();
    }
  });
}

// Three stems that all take data: which of their parameters a rank uses does not change the order.
TEST(FullyShard, StemsThatSeeData) {
  struct Stems : torch::nn::Module {
    Stems() {
      for (uint64_t i = 0; i < 3; ++i) {
        stems.push_back(
            register_module("stem" + std::to_string(i), std::make_shared<Branch>(10 * i)));
      }
      mlp = register_module("mlp", tests::make_mlp(3, 2, 5));
    }
    at::Tensor forward(const at::Tensor& input) {
      at::Tensor sum = at::zeros_like(input);
      for (const auto& stem : stems) sum = sum + at::tanh(modules::forward(stem, input));
      return modules::forward(mlp, sum);
    }
    std::vector<std::shared_ptr<Branch>> stems;
    ModulePtr mlp;
  };
  on_ranks(2, [](Rank& self) {
    const auto plain = std::make_shared<Stems>(), module = std::make_shared<Stems>();
    // A unit of which rank 0 uses two parameters and rank 1 uses one.
    for (const auto& each : {plain, module}) each->stems[2]->both = self.rank == 0;
    Sharding sharding(self, *module, {{"stem0"}, {"stem1"}, {"stem2"}, {"mlp"}},
                      {.reshard_after_forward = true});
    for (const auto& each : {plain, module})
      forward(each, random_input({2, 3}, data_seed(0, self.rank))).sum().backward();
    EXPECT_EQ(self.log->count(kReduce), 4);
    tests::average_grads(*plain, *self.by_hand);
    EXPECT_EQ(difference(*plain, *module, shards_of(self)), "");
  });
}

// Two forwards, then one backward per forward.
TEST(FullyShard, TwoForwardsThenTwoBackwards) {
  on_ranks(2, [](Rank& self) {
    const ModulePtr plain = tests::make_mlps(4, 3, 42), module = tests::make_mlps(4, 3, 42);
    Sharding sharding(self, *module, mlps(3), {.reshard_after_forward = true});
    const auto log = sharding.record_events();
    for (int iteration = 0; iteration < 2; ++iteration) {
      for (const ModulePtr& each : {plain, module}) {
        each->zero_grad();
        std::vector<at::Tensor> losses;
        for (const int which : {0, 1}) {
          losses.push_back(
              forward(each, random_input({2, 4}, data_seed(which, self.rank))).square().sum());
        }
        for (const at::Tensor& loss : losses) {
          log->clear();
          loss.backward();
          if (each == plain) continue;
          // The last MLP's output is the root's: its backward begins first.
          EXPECT_EQ(events(*log, {Event::kUnshard, Event::kPostBackward}),
                    (std::vector<std::string>{"mlp2", "mlp1", "the root", "post mlp2", "mlp0",
                                              "post mlp1", "post mlp0", "post the root"}));
        }
      }
      tests::average_grads(*plain, *self.by_hand);
      EXPECT_EQ(difference(*plain, *module, shards_of(self)), "") << iteration;
      // In the second backward too a layer is reduced before the next one computes.
      const auto reduced = std::ranges::find(*log, EventRecord{Event::kReduce, "`mlp2`"});
      const auto next = std::ranges::find(*log, EventRecord{Event::kPostBackward, "`mlp0`"});
      EXPECT_LT(reduced - log->begin(), next - log->begin());
    }
  });
}

// A forward with grad mode on and without a backward, as in a validation step, whose output all
// ranks keep, or some: the next backward posts the same collectives on all ranks, and reduces each
// layer before the next one computes.
TEST(FullyShard, AForwardWithoutBackwardWhoseOutputIsKept) {
  for (const int keeps : {1, 2, 3}) {
    on_ranks(3, [keeps](Rank& self) {
      const ModulePtr plain = tests::make_mlps(4, 3, 42), module = tests::make_mlps(4, 3, 42);
      Parity parity(self, plain, module, shards_of(self));
      Sharding sharding(self, *module, mlps(3), {.reshard_after_forward = true});
      const auto log = sharding.record_events();
      std::vector<at::Tensor> kept;
      for (int iteration = 0; iteration < 3; ++iteration) {
        const at::Tensor output = forward(module, random_input({2, 4}, 7));
        if (self.rank < keeps) kept.push_back(output);
        parity.zero_grad(iteration);
        log->clear();
        parity.backward(sum_of({2, 4}), iteration);
        const auto reduced = std::ranges::find(*log, EventRecord{Event::kReduce, "`mlp2`"});
        const auto next = std::ranges::find(*log, EventRecord{Event::kPostBackward, "`mlp0`"});
        EXPECT_LT(reduced - log->begin(), next - log->begin());
        parity.step();
      }
    });
  }
}

// A layer that is called twice, and only one of the results is used: some ranks keep the other one.
TEST(FullyShard, ALayerCalledTwiceWhoseUnusedResultIsKept) {
  struct Model : tests::TestModule {
    Model()
        : first(register_module("first", tests::make_mlp(4, 2, 1))),
          layer(register_module("layer", tests::make_mlp(4, 2, 2))),
          last(register_module("last", tests::make_mlp(4, 2, 3))) {}
    at::Tensor forward(const at::Tensor& input) override {
      const at::Tensor x = modules::forward(first, input);
      const at::Tensor unused = modules::forward(layer, x * 2);
      if (keeps) kept.push_back(unused);
      return modules::forward(last, modules::forward(layer, x));
    }
    ModulePtr first, layer, last;
    bool keeps = false;
    std::vector<at::Tensor> kept;
  };
  on_ranks(2, [](Rank& self) {
    const auto plain = std::make_shared<Model>(), module = std::make_shared<Model>();
    module->keeps = self.rank == 0;
    Parity parity(self, plain, module, shards_of(self));
    Sharding sharding(self, *module, {{"first"}, {"layer"}, {"last"}},
                      {.reshard_after_forward = true});
    for (int iteration = 0; iteration < 3; ++iteration) {
      parity.zero_grad(iteration);
      parity.backward(sum_of({2, 4}), iteration);
      parity.step();
    }
  });
}

// A failed step does not affect the next one.
TEST(FullyShard, ABackwardThatStopsOnAnError) {
  on_ranks(2, [](Rank& self) {
    const ModulePtr plain = tests::make_mlps(4, 2, 42), module = tests::make_mlps(4, 2, 42);
    Sharding sharding(self, *module, mlps(2), {});
    const at::Tensor output = forward(module, random_input({2, 4}, 7));
    output.register_hook([](const at::TensorBase&) { throw std::runtime_error("a user's hook"); });
    EXPECT_THROW((output * 1).sum().backward(), std::runtime_error);
    const at::Tensor input = random_input({2, 4}, data_seed(0, self.rank));
    plain->forward(input).sum().backward();
    forward(module, input).sum().backward();
    tests::average_grads(*plain, *self.by_hand);
    EXPECT_EQ(difference(*plain, *module, shards_of(self)), "");
  });
}

// Evaluation does not affect a later backward.
TEST(FullyShard, EvaluationBetweenSteps) {
  on_ranks(2, [](Rank& self) {
    const ModulePtr plain = tests::make_mlps(4, 2, 42), module = tests::make_mlps(4, 2, 42);
    Sharding sharding(self, *module, mlps(2), {});
    const auto log = sharding.record_events();
    for (int iteration = 0; iteration < 3; ++iteration) {
      {
        const c10::NoGradGuard no_grad;
        const at::Tensor input = random_input({2, 4}, 5);
        EXPECT_TRUE(at::allclose(plain->forward(input), forward(module, input)));
        EXPECT_FALSE(sharding.root().is_unsharded());
      }
      const at::Tensor input = random_input({2, 4}, data_seed(iteration, self.rank));
      plain->zero_grad();
      const at::Tensor output = forward(module, input);
      // Between forward and backward, zero_grad clears the gradients of the shards.
      module->zero_grad();
      plain->forward(input).sum().backward();
      log->clear();
      output.sum().backward();
      // The last MLP's output is the root's: its backward begins first.
      EXPECT_EQ(events(*log, {Event::kPrefetch}), (std::vector<std::string>{"mlp0", "", ""}));
      tests::average_grads(*plain, *self.by_hand);
      EXPECT_EQ(difference(*plain, *module, shards_of(self)), "");
    }
  });
}

// Two forwards, then one backward through both, as in DPO.
TEST(FullyShard, TwoForwardsBeforeOneBackward) {
  for (const Checkpointed checkpointed : {Checkpointed::kNot, Checkpointed::kAround}) {
    on_ranks(2, [&](Rank& self) {
      const tests::TransformerArgs args{.layers = 2, .checkpointed = checkpointed};
      const ModulePtr plain = tests::make_transformer(args, 42);
      const ModulePtr module = tests::make_transformer(args, 42);
      Sharding sharding(self, *module, blocks(2), {.reshard_after_forward = true});
      for (int iteration = 0; iteration < 2; ++iteration) {
        for (const ModulePtr& each : {plain, module}) {
          each->zero_grad();
          at::Tensor loss = at::zeros({}, at::kDouble);
          for (const int which : {0, 1}) {
            loss = loss + forward(each, random_tokens({2, 8}, 8, data_seed(which, self.rank)))
                              .square()
                              .mean();
          }
          loss.backward();
        }
        tests::average_grads(*plain, *self.by_hand);
        EXPECT_EQ(difference(*plain, *module, shards_of(self)), "") << iteration;
      }
    });
  }
}

}  // namespace
}  // namespace pipewright::fsdp
