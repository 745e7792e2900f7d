// When units all-gather and free: the counts and the order of PyTorch's test_fully_shard_comm.py
// and test_fsdp_backward_prefetch.py.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/transformer.h>
#include <torch/nn/modules/transformercoder.h>
#include <torch/nn/modules/transformerlayer.h>
#include <torch/optim/sgd.h>

#include <algorithm>

#include "pipewright/fsdp/fully_shard.h"
#include "tests/fsdp/sharding.h"
#include "tests/support/ranks/ground.h"
#include "tests/support/training/modules.h"
#include "tests/support/training/on_ranks.h"
#include "tests/support/training/parity.h"

namespace pipewright::fsdp {
namespace {

using tests::blocks;
using tests::Checkpointed;
using tests::events;
using tests::kGather;
using tests::kReduce;
using tests::mlps;
using tests::ModulePtr;
using tests::on_ranks;
using tests::random_input;
using tests::random_tokens;
using tests::Rank;
using tests::Sharding;

using Names = std::vector<std::string>;

constexpr Checkpointed kCheckpointings[] = {Checkpointed::kNot, Checkpointed::kAround,
                                            Checkpointed::kInside, Checkpointed::kWrapper};

// The counts of one forward and one backward, with kLayers layers and the root.
TEST(FullyShardComm, test_counts) {
  constexpr int kLayers = 4;
  struct Case {
    ReshardAfterForward reshard_after_forward;
    int backward_gathers;
  };
  for (const Case& the :
       {Case{{}, kLayers}, Case{true, kLayers + 1}, Case{2, kLayers + 1}, Case{false, 0}}) {
    on_ranks(4, [&](Rank& self) {
      const ModulePtr module = tests::make_mlps(8, kLayers, 42);
      Sharding sharding(self, *module, mlps(kLayers),
                        {.reshard_after_forward = the.reshard_after_forward});
      for (int iteration = 0; iteration < 2; ++iteration) {
        self.log->clear();
        const at::Tensor loss = forward(module, random_input({2, 8}, 1)).sum();
        EXPECT_EQ(self.log->count(kGather), kLayers + 1);
        self.log->clear();
        loss.backward();
        EXPECT_EQ(self.log->count(kGather), the.backward_gathers);
        EXPECT_EQ(self.log->count(kReduce), kLayers + 1);
        EXPECT_EQ(self.log->calls().size(),
                  static_cast<size_t>(the.backward_gathers + kLayers + 1));
      }
    });
  }
}

TEST(FullyShardComm, test_manual_reshard_and_set_reshard_after_forward) {
  constexpr int kLayers = 3;
  const auto backward_gathers = [](Rank& self, const Options& options,
                                   const std::function<void(Sharding&)>& before,
                                   const std::function<void(Sharding&)>& between) {
    const ModulePtr module = tests::make_mlps(8, kLayers, 42);
    Sharding sharding(self, *module, mlps(kLayers), options);
    if (before) before(sharding);
    const at::Tensor loss = forward(module, random_input({2, 8}, 1)).sum();
    if (between) between(sharding);
    self.log->clear();
    loss.backward();
    return self.log->count(kGather);
  };
  on_ranks(2, [&](Rank& self) {
    EXPECT_EQ(backward_gathers(self, {.reshard_after_forward = false}, nullptr,
                               [](Sharding& sharding) {
                                 for (const auto& unit : sharding.units) unit->reshard();
                               }),
              kLayers + 1);
    const auto set = [](bool reshard, bool recurse) {
      return
          [=](Sharding& sharding) { sharding.root().set_reshard_after_forward(reshard, recurse); };
    };
    EXPECT_EQ(backward_gathers(self, {.reshard_after_forward = false}, set(true, true), nullptr),
              kLayers + 1);
    EXPECT_EQ(backward_gathers(self, {.reshard_after_forward = false}, set(true, false), nullptr),
              1);
    EXPECT_EQ(backward_gathers(self, {.reshard_after_forward = true}, set(false, true), nullptr),
              0);
    EXPECT_EQ(backward_gathers(self, {.reshard_after_forward = true}, set(false, false), nullptr),
              kLayers);
  });
}

TEST(FullyShardComm, test_set_unshard_in_backward) {
  on_ranks(2, [](Rank& self) {
    for (const bool unshard : {true, false}) {
      const ModulePtr module = tests::make_transformer({.layers = 2, .tied = false}, 42);
      Sharding sharding(self, *module, {{"tokens"}, {"block0"}, {"block1"}},
                        {.reshard_after_forward = true});
      sharding.units[0]->set_unshard_in_backward(unshard);
      const at::Tensor loss = forward(module, random_tokens({2, 8}, 8, 1)).sum();
      self.log->clear();
      loss.backward();
      EXPECT_EQ(self.log->count(kGather), unshard ? 4 : 3);
      EXPECT_EQ(self.log->count(kReduce), 4);
    }
  });
}

// When each of three blocks is gathered. Checkpointing must not change it.
TEST(FullyShardComm, test_backward_prefetch_order) {
  for (const Checkpointed checkpointed : kCheckpointings) {
    on_ranks(2, [&](Rank& self) {
      const tests::TransformerArgs args{.layers = 3, .checkpointed = checkpointed};
      const ModulePtr module = tests::make_transformer(args, 42);
      Sharding sharding(self, *module, blocks(3), {.reshard_after_forward = true});
      const auto log = sharding.record_events();
      for (int iteration = 0; iteration < 2; ++iteration) {
        log->clear();
        const at::Tensor loss = forward(module, random_tokens({2, 8}, 8, 1)).sum();
        EXPECT_EQ(events(*log, {Event::kUnshard}),
                  (Names{"the root", "block0", "block1", "block2"}));
        log->clear();
        loss.backward();
        EXPECT_EQ(events(*log, {Event::kUnshard, Event::kPostBackward}),
                  (Names{"the root", "block2", "block1", "post block2", "block0", "post block1",
                         "post block0", "post the root"}));
        // The all-gather of a block is pending while the next block computes its backward.
        const auto at = [&](Event event, const std::string& unit) {
          const auto found = std::ranges::find(*log, EventRecord{event, unit});
          EXPECT_NE(found, log->end());
          return found - log->begin();
        };
        EXPECT_LT(at(Event::kUnshard, "`block1`"), at(Event::kPostBackward, "`block2`"));
        EXPECT_LT(at(Event::kPostBackward, "`block2`"), at(Event::kWaitUnshard, "`block1`"));
        // So is its reduction.
        EXPECT_LT(at(Event::kReduce, "`block2`"), at(Event::kPreBackward, "`block1`"));
        EXPECT_LT(at(Event::kPreBackward, "`block1`"), at(Event::kWaitReduce, "`block2`"));
      }
    });
  }
}

// The order for each option, and for two forwards before one backward, which visits each block
// twice.
TEST(FullyShardComm, test_backward_order) {
  const Names posts = {"post block2", "post block1", "post block0", "post the root"};
  const Names blocks_resharded = {"block2",      "block1",      "post block2",  "block0",
                                  "post block1", "post block0", "post the root"};
  Names twice = {"the root"};
  for (int forward = 0; forward < 2; ++forward)
    twice.insert(twice.end(), blocks_resharded.begin(), blocks_resharded.end() - 1);
  twice.emplace_back("post the root");
  struct Case {
    ReshardAfterForward reshard_after_forward;
    int forwards;
    Names want;
  };
  for (const Checkpointed checkpointed : kCheckpointings) {
    for (const Case& the :
         {Case{{}, 1, blocks_resharded}, Case{false, 1, posts}, Case{true, 2, twice}}) {
      on_ranks(2, [&](Rank& self) {
        const ModulePtr module =
            tests::make_transformer({.layers = 3, .checkpointed = checkpointed}, 42);
        Sharding sharding(self, *module, blocks(3),
                          {.reshard_after_forward = the.reshard_after_forward});
        const auto log = sharding.record_events();
        for (int iteration = 0; iteration < 2; ++iteration) {
          at::Tensor loss = at::zeros({}, at::kDouble);
          for (int i = 0; i < the.forwards; ++i)
            loss = loss + forward(module, random_tokens({2, 8}, 8, 1)).sum();
          log->clear();
          loss.backward();
          EXPECT_EQ(events(*log, {Event::kUnshard, Event::kPostBackward}), the.want)
              << static_cast<int>(checkpointed);
        }
      });
    }
  }
}

// Forward prefetch gathers ahead in forward, and not again in a checkpoint's second forward.
TEST(FullyShard, ExplicitPrefetchGathersAhead) {
  for (const Checkpointed checkpointed : kCheckpointings) {
    on_ranks(2, [&](Rank& self) {
      const tests::TransformerArgs args{.layers = 4, .checkpointed = checkpointed};
      const ModulePtr module = tests::make_transformer(args, 42);
      Sharding sharding(self, *module, blocks(4), {.reshard_after_forward = true});
      const auto log = sharding.record_events();
      auto& units = sharding.units;
      units[0]->set_modules_to_forward_prefetch({units[1].get(), units[2].get()});
      units[3]->set_modules_to_backward_prefetch({units[2].get(), units[1].get()});
      const at::Tensor loss = forward(module, random_tokens({2, 8}, 8, 1)).sum();
      EXPECT_EQ(events(*log, {Event::kUnshard, Event::kReshard}),
                (Names{"the root", "block0", "block1", "block2", "block0", "block1", "block2",
                       "block3", "block3", "the root"}));
      log->clear();
      loss.backward();
      EXPECT_EQ(events(*log, {Event::kUnshard, Event::kPostBackward}),
                (Names{"the root", "block3", "block2", "block1", "post block3", "post block2",
                       "block0", "post block1", "post block0", "post the root"}));
    });
  }
}

// By default a forward gathers the unit that began next in the forward before: from the second one
// on, the events are those of PyTorch with a prefetch of one unit.
TEST(FullyShardComm, test_forward_prefetch) {
  for (const Checkpointed checkpointed : kCheckpointings) {
    on_ranks(2, [&](Rank& self) {
      const tests::TransformerArgs args{.layers = 4, .checkpointed = checkpointed};
      const ModulePtr module = tests::make_transformer(args, 42);
      Sharding sharding(self, *module, blocks(4), {.reshard_after_forward = true});
      const auto log = sharding.record_events();
      const auto run = [&](bool trains) {
        const c10::AutoGradMode mode(trains);
        log->clear();
        const at::Tensor loss = forward(module, random_tokens({2, 8}, 8, 1)).sum();
        const Names found = events(*log, {Event::kUnshard, Event::kReshard});
        if (trains) loss.backward();
        return found;
      };
      EXPECT_EQ(run(true), (Names{"the root", "block0", "block0", "block1", "block1", "block2",
                                  "block2", "block3", "block3", "the root"}));
      // Whether it trains or not.
      for (const bool trains : {true, false, true}) {
        EXPECT_EQ(run(trains), (Names{"the root", "block0", "block1", "block0", "block2", "block1",
                                      "block3", "block2", "block3", "the root"}));
      }
    });
  }
}

// Calls some of its layers, in some order.
class Chosen final : public tests::TestModule {
 public:
  Chosen() {
    for (size_t i = 0; i < 4; ++i)
      layers_.push_back(register_module("mlp" + std::to_string(i), tests::make_mlp(2, 2, i)));
  }
  at::Tensor forward(const at::Tensor& input) override {
    at::Tensor x = input;
    for (const size_t layer : order) x = modules::forward(layers_[layer], x);
    return x;
  }
  std::vector<size_t> order;

 private:
  std::vector<ModulePtr> layers_;
};

// A forward that leaves the order of the last one gathers at most one unit in vain, and frees it at
// its end. Forwards in one order again are prefetched again.
TEST(FullyShardComm, ForwardPrefetchFollowsTheLastForward) {
  on_ranks(2, [](Rank& self) {
    const auto module = std::make_shared<Chosen>();
    Sharding sharding(self, *module, mlps(4), {.reshard_after_forward = true});
    const auto log = sharding.record_events();
    const auto run = [&](std::vector<size_t> order) {
      module->order = std::move(order);
      log->clear();
      const at::Tensor loss = forward(module, random_input({2, 2}, 1)).sum();
      const Names found = events(*log, {Event::kUnshard, Event::kReshard});
      for (const auto& unit : sharding.units) EXPECT_FALSE(unit->is_unsharded());
      loss.backward();
      return found;
    };
    run({0, 1, 2});
    EXPECT_EQ(run({0, 3}), (Names{"mlp0", "mlp1", "mlp0", "mlp3", "mlp3", "mlp1"}));
    EXPECT_EQ(run({0}), (Names{"mlp0", "mlp3", "mlp0", "mlp3"}));
    EXPECT_EQ(run({2, 1, 0}), (Names{"mlp0", "mlp2", "mlp2", "mlp1", "mlp1", "mlp0"}));
    // A layer that is called twice is freed in between.
    EXPECT_EQ(run({2, 1, 2}),
              (Names{"mlp2", "mlp1", "mlp2", "mlp0", "mlp1", "mlp2", "mlp2", "mlp0"}));
    EXPECT_EQ(run({2, 1, 2}), (Names{"mlp2", "mlp1", "mlp2", "mlp2", "mlp1", "mlp2"}));
    // The state of a step is dropped, as after a failure: the ranks may have come to different
    // places, so nobody follows that forward.
    sharding.root().data_parallel().reset();
    EXPECT_EQ(run({2, 1}), (Names{"mlp2", "mlp2", "mlp1", "mlp1"}));
  });
}

// nn.Transformer, each layer of which is called as a unit.
class Seq2Seq : public torch::nn::TransformerImpl {
 public:
  Seq2Seq() : TransformerImpl(torch::nn::TransformerOptions(64, 8).dim_feedforward(64)) {}

  at::Tensor forward(const at::Tensor& source, const at::Tensor& target) {
    auto its_encoder = encoder.get<torch::nn::TransformerEncoder>();
    auto its_decoder = decoder.get<torch::nn::TransformerDecoder>();
    at::Tensor memory = source, x = target;
    for (const auto& layer : *its_encoder->layers) {
      const auto run = [&](const std::vector<at::Tensor>& in) {
        return std::vector{layer->as<torch::nn::TransformerEncoderLayer>()->forward(in[0])};
      };
      memory = call(*layer, run, {memory})[0];
    }
    memory = its_encoder->norm.forward(memory);
    for (const auto& layer : *its_decoder->layers) {
      const auto run = [&](const std::vector<at::Tensor>& in) {
        return std::vector{layer->as<torch::nn::TransformerDecoderLayer>()->forward(in[0], in[1])};
      };
      x = call(*layer, run, {x, memory})[0];
    }
    return its_decoder->norm.forward(x);
  }
};

// PyTorch's names, in PyTorch's order.
const Names kEncoderLayer = {
    "self_attn.in_proj_weight",
    "self_attn.in_proj_bias",
    "self_attn.out_proj.weight",
    "self_attn.out_proj.bias",
    "linear1.weight",
    "linear1.bias",
    "linear2.weight",
    "linear2.bias",
    "norm1.weight",
    "norm1.bias",
    "norm2.weight",
    "norm2.bias",
};
const Names kDecoderLayer = {
    "self_attn.in_proj_weight",
    "self_attn.in_proj_bias",
    "self_attn.out_proj.weight",
    "self_attn.out_proj.bias",
    "multihead_attn.in_proj_weight",
    "multihead_attn.in_proj_bias",
    "multihead_attn.out_proj.weight",
    "multihead_attn.out_proj.bias",
    "linear1.weight",
    "linear1.bias",
    "linear2.weight",
    "linear2.bias",
    "norm1.weight",
    "norm1.bias",
    "norm2.weight",
    "norm2.bias",
    "norm3.weight",
    "norm3.bias",
};

// What the root keeps.
const Names kNorms = {"encoder.norm.weight", "encoder.norm.bias", "decoder.norm.weight",
                      "decoder.norm.bias"};

// The unit that each prefetch decision of a backward chooses, for the 12 layers of nn.Transformer
// and the root. The layers are made units by hand, and by their types.
TEST(FsdpBackwardPrefetch, test_backward_prefetch) {
  Names layers;  // the last one first
  for (const char* part : {"decoder", "encoder"}) {
    for (int i = 5; i >= 0; --i) layers.push_back(part + (".layers." + std::to_string(i)));
  }
  Names pre = layers;
  pre.emplace_back("");
  Names post(layers.begin() + 1, layers.end());
  post.insert(post.end(), {"", ""});
  const auto train = [&](Rank& self, const tests::Groups& groups, const Options& options,
                         const Names& want) {
    const auto module = std::make_shared<Seq2Seq>();
    module->to(tests::here());
    const Sharding sharding(self, *module, groups, options);
    const auto log = sharding.record_events();
    if (groups.empty()) {
      EXPECT_EQ(sharding.units.back()->parameter_names(), kNorms);
    }
    for (size_t i = 0; i < groups.size(); ++i) {
      EXPECT_EQ(sharding.units[i]->parameter_names(),
                layers[i].starts_with("encoder") ? kEncoderLayer : kDecoderLayer);
    }
    torch::optim::SGD optimizer(module->parameters(), 1e-2);
    for (int iteration = 0; iteration < 2; ++iteration) {
      optimizer.zero_grad();
      const at::Tensor loss = forward(module, at::randn({10, 1, 64}, tests::here()),
                                      at::randn({20, 1, 64}, tests::here()))
                                  .sum();
      log->clear();
      loss.backward();
      EXPECT_EQ(events(*log, {Event::kPrefetch}), want);
      optimizer.step();
    }
  };
  tests::Groups by_hand;
  for (const std::string& layer : layers) by_hand.push_back({layer});
  for (const auto& [mode, want] :
       {std::pair{BackwardPrefetch::kNone, Names{}}, std::pair{BackwardPrefetch::kPre, pre},
        std::pair{BackwardPrefetch::kPost, post}}) {
    on_ranks(2, [&, mode = mode, want = want](Rank& self) {
      Options options{.backward_prefetch = mode};
      train(self, by_hand, options, want);
      options.auto_wrap_policy = wrap_types<torch::nn::TransformerEncoderLayerImpl,
                                            torch::nn::TransformerDecoderLayerImpl>();
      train(self, {}, options, want);
    });
  }
}

}  // namespace
}  // namespace pipewright::fsdp
