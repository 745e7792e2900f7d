// Prefetches that go astray, and groups of several modules: rows of PyTorch's
// test_fully_shard_comm.py and test_fully_shard_training.py. Values equal a plain copy's, and no
// unit is gathered twice or left gathered.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>

#include "pipewright/fsdp/fully_shard.h"
#include "tests/fsdp/sharding.h"
#include "tests/support/ranks/ground.h"
#include "tests/support/training/modules.h"
#include "tests/support/training/on_ranks.h"
#include "tests/support/training/parity.h"

namespace pipewright::fsdp {
namespace {

using tests::events;
using tests::ModulePtr;
using tests::on_ranks;
using tests::Parity;
using tests::random_input;
using tests::Rank;
using tests::Sharding;
using tests::shards_of;
using tests::sum_of;

using Names = std::vector<std::string>;

const std::vector<Event> kOrder = {Event::kUnshard, Event::kPostBackward};

// in_proj is told to prefetch out_proj, which backward has used already.
TEST(FullyShardPrefetch, test_backward_misprefetch) {
  on_ranks(2, [](Rank& self) {
    const ModulePtr plain = tests::make_mlp(16, 4, 42), module = tests::make_mlp(16, 4, 42);
    Parity parity(self, plain, module, shards_of(self));
    Sharding sharding(self, *module, {{"in_proj"}, {"out_proj"}}, {});
    sharding.units[0]->set_modules_to_backward_prefetch({sharding.units[1].get()});
    for (int iteration = 0; iteration < 3; ++iteration) {
      parity.zero_grad(iteration);
      parity.backward(sum_of({2, 16}), iteration);
      for (const auto& unit : sharding.units) EXPECT_FALSE(unit->is_unsharded());
      parity.step();
    }
  });
}

// Two of its layers share an input; a caller may use only one of their outputs.
struct Double : torch::nn::Module {
  Double() {
    for (const char* name : {"lin", "lin1", "lin2"}) {
      layers.push_back(register_module(name, torch::nn::Linear(8, 8)));
      layers.back()->to(at::kDouble);
      const c10::NoGradGuard no_grad;
      for (at::Tensor& weight : layers.back()->parameters()) {
        const auto size = static_cast<double>(weight.numel());
        weight.copy_(at::linspace(-0.5, 0.5, weight.numel(), at::kDouble)
                         .add_(0.01 * size * static_cast<double>(layers.size()))
                         .sin_()
                         .view_as(weight));
      }
    }
  }
  std::tuple<at::Tensor, at::Tensor> forward(const at::Tensor& input) {
    const at::Tensor x = modules::forward(layers[0], input);
    return {modules::forward(layers[1], x).relu(), modules::forward(layers[2], x).relu()};
  }
  std::vector<torch::nn::Linear> layers;
};

// Two backwards through one forward, each of which uses one of two layers.
TEST(FullyShardPrefetch, test_backward_prefetch_unused_in_backward) {
  on_ranks(2, [](Rank& self) {
    const auto plain = std::make_shared<Double>(), module = std::make_shared<Double>();
    for (const auto& each : {plain, module}) each->to(tests::here());
    Sharding sharding(self, *module, {{"lin"}, {"lin1"}, {"lin2"}},
                      {.reshard_after_forward = true});
    const auto log = sharding.record_events();
    const at::Tensor input = random_input({4, 8}, static_cast<uint64_t>(1 + self.rank));
    const auto [want1, want2] = plain->forward(input);
    (want1.sum() + want2.sum()).backward();
    log->clear();
    const auto [loss1, loss2] = modules::forward(module, input);
    EXPECT_EQ(events(*log, kOrder), (Names{"lin", "lin1", "lin2"}));
    sharding.root().set_is_last_backward(false);
    log->clear();
    loss2.sum().backward({}, /*retain_graph=*/true);
    // The prefetch of lin1 is in vain: it is freed at the end.
    EXPECT_EQ(events(*log, kOrder),
              (Names{"lin2", "lin1", "post lin2", "lin", "post lin", "post the root"}));
    sharding.root().set_is_last_backward(true);
    log->clear();
    loss1.sum().backward();
    // The root prefetches lin2, whose forward ended last, in vain.
    EXPECT_EQ(events(*log, kOrder),
              (Names{"lin2", "lin1", "lin", "post lin1", "post lin", "post the root"}));
    for (const auto& unit : sharding.units) EXPECT_FALSE(unit->is_unsharded());
    tests::average_grads(*plain, *self.by_hand);
    EXPECT_EQ(tests::difference(*plain, *module, shards_of(self)), "");
  });
}

// Groups of several modules: the events that PyTorch's test lists, and that of the empty root.
// After the first forward, forward prefetches too.
TEST(FullyShardPrefetch, test_multi_module_backward_prefetch) {
  for (const auto checkpointed : {tests::Checkpointed::kNot, tests::Checkpointed::kAround}) {
    on_ranks(2, [&](Rank& self) {
      const tests::TransformerArgs args{.layers = 5, .tied = false, .checkpointed = checkpointed};
      const ModulePtr plain = tests::make_transformer(args, 42);
      const ModulePtr module = tests::make_transformer(args, 42);
      Sharding sharding(self, *module,
                        {{"block0"},
                         {"block1", "block2"},
                         {"block3", "block4"},
                         {"tokens", "positions"},
                         {"norm", "output"}},
                        {.reshard_after_forward = true});
      const auto log = sharding.record_events();
      sharding.units[4]->set_reshard_after_forward(false);
      const at::Tensor tokens = tests::random_tokens({2, 8}, 8, static_cast<uint64_t>(self.rank));
      for (int iteration = 0; iteration < 2; ++iteration) {
        log->clear();
        const at::Tensor loss = modules::forward(module, tokens).sum();
        EXPECT_EQ(events(*log, {Event::kUnshard}),
                  (Names{"tokens", "block0", "block1", "block3", "norm"}));
        log->clear();
        loss.backward();
        EXPECT_EQ(events(*log, kOrder),
                  (Names{"block3", "post norm", "block1", "post block3", "block0", "post block1",
                         "tokens", "post block0", "post tokens", "post the root"}));
        plain->forward(tokens).sum().backward();
        for (const auto& unit : sharding.units) EXPECT_FALSE(unit->is_unsharded());
      }
      tests::average_grads(*plain, *self.by_hand);
      EXPECT_EQ(tests::difference(*plain, *module, shards_of(self)), "");
    });
  }
}

// A checkpointed part inside a checkpointed block, with a unit of its own: the events that
// PyTorch's test lists.
TEST(FullyShardPrefetch, test_set_modules_to_backward_prefetch_inside_ac) {
  const Names without_lists = {"norm",         "block2",         "post norm",   "block2.up",
                               "block1",       "post block2.up", "post block2", "block1.up",
                               "block0",       "post block1.up", "post block1", "block0.up",
                               "tokens",       "post block0.up", "post block0", "post tokens",
                               "post the root"};
  const Names with_lists = {"norm",         "block2",         "post norm",      "block1",
                            "block1.up",    "block2.up",      "post block2.up", "post block2",
                            "block0",       "block0.up",      "post block1.up", "post block1",
                            "tokens",       "post block0.up", "post block0",    "post tokens",
                            "post the root"};
  for (const bool lists : {false, true}) {
    on_ranks(2, [&](Rank& self) {
      const tests::TransformerArgs args{.layers = 3,
                                        .tied = false,
                                        .checkpointed = tests::Checkpointed::kWrapper,
                                        .ffn_checkpointed = true};
      const ModulePtr plain = tests::make_transformer({.layers = 3, .tied = false}, 42);
      const ModulePtr module = tests::make_transformer(args, 42);
      Parity parity(self, plain, module, shards_of(self));
      tests::Groups groups = {{"tokens", "positions"}};
      for (const std::string block : {"block0", "block1", "block2"}) {
        groups.push_back({block + "." + tests::kCheckpointed + ".up"});
        groups.push_back({block});
      }
      groups.push_back({"norm", "output"});
      Sharding sharding(self, *module, groups, {.reshard_after_forward = true});
      const auto log = sharding.record_events();
      if (lists) {
        const auto unit = [&](size_t i) { return sharding.units[i].get(); };
        unit(7)->set_modules_to_backward_prefetch({unit(6)});
        unit(6)->set_modules_to_backward_prefetch({unit(4), unit(3)});
        unit(4)->set_modules_to_backward_prefetch({unit(2), unit(1)});
        unit(2)->set_modules_to_backward_prefetch({unit(0)});
      }
      const tests::Loss loss = tests::sum_of_tokens({2, 8}, 8);
      for (int iteration = 0; iteration < 3; ++iteration) {
        parity.zero_grad(iteration);
        parity.backward(loss, iteration);
        for (const auto& each : sharding.units) EXPECT_FALSE(each->is_unsharded());
        parity.step();
        const at::Tensor again = loss(module, iteration, self.rank);
        log->clear();
        again.backward();
        loss(plain, iteration, self.rank).backward();
        Names got = events(*log, kOrder);
        for (std::string& name : got) {
          const size_t at = name.find(std::string(".") + tests::kCheckpointed);
          if (at != std::string::npos) name.erase(at, std::string(".checkpointed").size());
        }
        EXPECT_EQ(got, lists ? with_lists : without_lists);
      }
    });
  }
}

// Two groups of two modules, of which only the second is called.
struct Pairs : tests::TestModule {
  Pairs() {
    for (int i = 0; i < 2; ++i) {
      const std::string number = std::to_string(i);
      register_module("unused" + number, torch::nn::Linear(1, 1));
      used.push_back(register_module("used" + number, torch::nn::Linear(16, 16)));
    }
    used.push_back(register_module("last", torch::nn::Linear(16, 16)));
    to(at::kDouble);
    const c10::NoGradGuard no_grad;
    for (at::Tensor& weight : parameters())
      weight.copy_(at::linspace(-0.3, 0.3, weight.numel(), at::kDouble).view_as(weight));
  }
  at::Tensor forward(const at::Tensor& input) override {
    at::Tensor x = input;
    for (const torch::nn::Linear& layer : used) x = modules::forward(layer, x);
    return x;
  }
  std::vector<torch::nn::Linear> used;
};

TEST(FullyShardPrefetch, test_multi_module_unused_module) {
  on_ranks(2, [](Rank& self) {
    const ModulePtr plain = std::make_shared<Pairs>(), module = std::make_shared<Pairs>();
    for (const ModulePtr& each : {plain, module}) each->to(tests::here());
    Parity parity(self, plain, module, shards_of(self));
    Sharding sharding(self, *module, {{"unused0", "used0"}, {"unused1", "used1"}},
                      {.reshard_after_forward = true});
    const auto log = sharding.record_events();
    for (int iteration = 0; iteration < 3; ++iteration) {
      parity.zero_grad(iteration);
      log->clear();
      parity.backward(sum_of({2, 16}), iteration);
      Names unshards = events(*log, {Event::kUnshard});
      unshards.resize(3);
      EXPECT_EQ(unshards, (Names{"the root", "unused0", "unused1"}));
      for (const auto& unit : sharding.units) EXPECT_FALSE(unit->is_unsharded());
      parity.step();
    }
  });
}

}  // namespace
}  // namespace pipewright::fsdp
