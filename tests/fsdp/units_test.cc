// When units gather, free and reduce: counts, order and memory as PyTorch's
// test_fully_shard_comm.py, test_fully_shard_memory.py and test_fsdp_backward_prefetch.py have
// them; what reductions divide by; misuse.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/transformerlayer.h>
#include <torch/nn/utils/clip_grad.h>

#include <algorithm>
#include <limits>

#include "comms/recording_backend.h"
#include "executor/checkpoint.h"
#include "fsdp/clip_grad_norm.h"
#include "fsdp/fully_shard.h"
#include "fsdp/reduction.h"
#include "fsdp/shard_layout.h"
#include "tests/fsdp/parity.h"
#include "tests/meter/meter.h"
#include "tests/training/modules.h"
#include "tests/training/on_ranks.h"

namespace pipewright::fsdp {
namespace {

using tests::blocks;
using tests::data_seed;
using tests::errors_on_ranks;
using tests::kGather;
using tests::kReduce;
using tests::mlps;
using tests::ModulePtr;
using tests::on_ranks;
using tests::random_input;
using tests::random_tokens;
using tests::Rank;
using tests::shard_difference;
using tests::Sharding;

TEST(ShardLayout, IsTorchChunk) {
  for (int64_t length = 0; length <= 20; ++length) {
    for (int64_t ranks = 1; ranks <= 9; ++ranks) {
      const auto chunks = at::arange(length).chunk(ranks);
      for (int64_t rank = 0; rank < ranks; ++rank) {
        const Chunk got = chunk_of(length, ranks, rank);
        const bool there = rank < static_cast<int64_t>(chunks.size()) && length > 0;
        ASSERT_EQ(got.length, there ? chunks[static_cast<size_t>(rank)].numel() : 0);
        if (got.length > 0) {
          ASSERT_EQ(got.begin, chunks[static_cast<size_t>(rank)][0].item<int64_t>());
        }
      }
    }
  }
}

// In every case a sum is divided by the factor, once.
TEST(Reduction, DividesByTheFactorOnce) {
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf}) {
    for (const int ranks : {1, 2, 3, 4, 6, 8, 16, 64}) {
      for (const std::optional<double> factor :
           {std::optional<double>(), std::optional<double>(1), std::optional<double>(ranks),
            std::optional<double>(2 * ranks), std::optional<double>(0.5)}) {
        for (const bool force_sum : {false, true}) {
          const Reduction reduction = reduction_of(dtype, ranks, factor, force_sum);
          EXPECT_EQ(reduction.divisor(ranks), factor.value_or(ranks));
          if (force_sum || dtype == at::kHalf) {
            EXPECT_EQ(reduction.op, ReduceOp::kSum);
          }
        }
      }
    }
  }
  // PyTorch's halves for fp16.
  for (const auto& [ranks, pre, post] : {std::tuple{2, 2.0, 1.0}, std::tuple{4, 2.0, 2.0},
                                         std::tuple{8, 4.0, 2.0}, std::tuple{16, 4.0, 4.0}}) {
    const Reduction reduction = reduction_of(at::kHalf, ranks, std::nullopt, false);
    EXPECT_EQ(reduction.pre, pre) << ranks;
    EXPECT_EQ(reduction.post, post) << ranks;
  }
}

TEST(FullyShardComm, test_divide_factor) {
  for (const int ranks : {1, 2, 4}) {
    for (const bool force_sum : {false, true}) {
      for (const double factor : {1.0 * ranks, 2.0 * ranks, 0.5}) {
        on_ranks(ranks, [&](Rank& self) {
          const ModulePtr plain = tests::make_mlp(4, 2, 42), module = tests::make_mlp(4, 2, 42);
          Sharding sharding(self, *module, {}, {});
          sharding.root().set_gradient_divide_factor(factor);
          sharding.root().set_force_sum_reduction_for_comms(force_sum);
          // Twice: gradients add up.
          for (const int microbatch : {0, 1}) {
            const at::Tensor input = random_input({2, 4}, data_seed(microbatch, self.rank));
            plain->forward(input).sum().backward();
            forward(module, input).sum().backward();
          }
          tests::average_grads(*plain, *self.by_hand);
          for (const at::Tensor& weight : plain->parameters()) weight.grad().mul_(ranks / factor);
          EXPECT_EQ(shard_difference(*plain, *module, self), "") << factor << force_sum;
        });
      }
    }
  }
}

// Of a forward and a backward, with L layers and the root.
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

std::vector<std::string> events(const Trace& trace, const std::vector<Event>& of) {
  std::vector<std::string> found;
  for (const TraceEntry& entry : trace) {
    if (std::ranges::find(of, entry.event) == of.end()) continue;
    std::string unit = entry.unit;
    std::erase(unit, '`');
    found.push_back((entry.event == Event::kPostBackward ? "post " : "") + unit);
  }
  return found;
}

// With three blocks: what is gathered when. Checkpointing changes nothing.
TEST(FullyShardComm, test_backward_prefetch_order) {
  using Names = std::vector<std::string>;
  for (const bool checkpointed : {false, true}) {
    on_ranks(2, [&](Rank& self) {
      const tests::TransformerArgs args{.layers = 3, .checkpointed = checkpointed};
      const ModulePtr module = tests::make_transformer(args, 42);
      const auto trace = std::make_shared<Trace>();
      Sharding sharding(self, *module, blocks(3), {.reshard_after_forward = true, .trace = trace});
      for (int iteration = 0; iteration < 2; ++iteration) {
        trace->clear();
        const at::Tensor loss = forward(module, random_tokens({2, 8}, 64, 1)).sum();
        EXPECT_EQ(events(*trace, {Event::kUnshard}),
                  (Names{"the root", "block0", "block1", "block2"}));
        trace->clear();
        loss.backward();
        EXPECT_EQ(events(*trace, {Event::kUnshard, Event::kPostBackward}),
                  (Names{"the root", "block2", "block1", "post block2", "block0", "post block1",
                         "post block0", "post the root"}));
        // The gather of a block is on its way while the one behind it computes.
        const auto at = [&](Event event, const std::string& unit) {
          const auto found = std::ranges::find(*trace, TraceEntry{event, unit});
          EXPECT_NE(found, trace->end());
          return found - trace->begin();
        };
        EXPECT_LT(at(Event::kUnshard, "`block1`"), at(Event::kPostBackward, "`block2`"));
        EXPECT_LT(at(Event::kPostBackward, "`block2`"), at(Event::kWaitUnshard, "`block1`"));
        // So is its reduction while the next one computes.
        EXPECT_LT(at(Event::kReduce, "`block2`"), at(Event::kPreBackward, "`block1`"));
        EXPECT_LT(at(Event::kPreBackward, "`block1`"), at(Event::kWaitReduce, "`block2`"));
      }
    });
  }
}

// PyTorch's FSDP1 on nn.Transformer: an encoder and a decoder of 6 layers, each a unit. A smaller
// model than there: the order does not depend on it.
struct Seq2Seq : torch::nn::Module {
  Seq2Seq() {
    for (int i = 0; i < 6; ++i) {
      encoder.push_back(register_module(
          "encoder" + std::to_string(i),
          torch::nn::TransformerEncoderLayer(
              torch::nn::TransformerEncoderLayerOptions(16, 2).dim_feedforward(32).dropout(0))));
    }
    for (int i = 0; i < 6; ++i) {
      decoder.push_back(register_module(
          "decoder" + std::to_string(i),
          torch::nn::TransformerDecoderLayer(
              torch::nn::TransformerDecoderLayerOptions(16, 2).dim_feedforward(32).dropout(0))));
    }
    norm = register_module("norm", torch::nn::Linear(16, 16));
  }
  at::Tensor forward(const at::Tensor& source, const at::Tensor& target) {
    at::Tensor memory = norm(source), x = norm(target);  // the root's gradients come last
    for (const auto& layer : encoder) {
      const auto run = [&](const std::vector<at::Tensor>& in) {
        return std::vector{torch::nn::TransformerEncoderLayer(layer)->forward(in[0])};
      };
      memory = call(*layer, run, {memory})[0];
    }
    for (const auto& layer : decoder) {
      const auto run = [&](const std::vector<at::Tensor>& in) {
        return std::vector{torch::nn::TransformerDecoderLayer(layer)->forward(in[0], in[1])};
      };
      x = call(*layer, run, {x, memory})[0];
    }
    return norm(x);
  }
  std::vector<torch::nn::TransformerEncoderLayer> encoder;
  std::vector<torch::nn::TransformerDecoderLayer> decoder;
  torch::nn::Linear norm = nullptr;
};

TEST(FsdpBackwardPrefetch, test_backward_prefetch) {
  using Names = std::vector<std::string>;
  Names layers;  // the last one first
  for (const char* part : {"decoder", "encoder"}) {
    for (int i = 5; i >= 0; --i) layers.push_back(part + std::to_string(i));
  }
  Names pre = layers;
  pre.emplace_back("");
  Names post(layers.begin() + 1, layers.end());
  post.insert(post.end(), {"", ""});
  for (const auto& [mode, want] :
       {std::pair{BackwardPrefetch::kNone, Names{}}, std::pair{BackwardPrefetch::kPre, pre},
        std::pair{BackwardPrefetch::kPost, post}}) {
    on_ranks(2, [&, mode = mode, want = want](Rank& self) {
      const auto module = std::make_shared<Seq2Seq>();
      const auto trace = std::make_shared<Trace>();
      tests::Groups groups;
      for (const char* part : {"encoder", "decoder"}) {
        for (int i = 0; i < 6; ++i) groups.push_back({part + std::to_string(i)});
      }
      Sharding sharding(self, *module, groups, {.backward_prefetch = mode, .trace = trace});
      torch::optim::Adam optimizer = tests::adam(*module);
      for (int iteration = 0; iteration < 2; ++iteration) {
        optimizer.zero_grad();
        const at::Tensor loss =
            forward(module, at::randn({10, 1, 16}), at::randn({20, 1, 16})).sum();
        trace->clear();
        loss.backward();
        // The last MLP's output is the root's: its backward begins first.
        EXPECT_EQ(events(*trace, {Event::kPrefetch}), want);
        optimizer.step();
      }
      // What a unit has is its layer's.
      for (const auto& [layer, count] : {std::pair{"encoder3", 12u}, std::pair{"decoder3", 18u}})
        EXPECT_EQ(module->named_children()[layer]->parameters().size(), count);
    });
  }
}

// In units of the bytes of: all shards, a layer, and what is in no layer. Of both ranks together,
// as one thread may free what the other has allocated.
TEST(FullyShardMemory, test_fully_shard_training_memory) {
  constexpr int kLayers = 6, kRanks = 2;
  for (const bool reshard : {true, false}) {
    tests::Meter meter;
    on_ranks(kRanks, [&](Rank& self) {
      const tests::Meter counts_here = tests::Meter::together_with(meter);
      const auto measure = [&](const std::function<void()>& check) {
        tests::on_first_rank_alone(self, check);
      };
      const ModulePtr module = tests::make_mlps(64, kLayers, 42);
      int64_t all = 0, rest = 0, largest = 0;
      for (const auto& [name, weight] : module->named_parameters().pairs()) {
        const auto bytes = kRanks * static_cast<int64_t>(weight.nbytes());
        all += bytes;
        largest = std::max(largest, bytes);
        if (name.starts_with("first")) rest += bytes;
      }
      const int64_t layer = (all - rest) / kLayers, shards = all / kRanks;
      // Activations, alignment, and what ranks as threads put together for one parameter.
      const int64_t slack = kRanks * (16 << 10) + largest;
      Sharding sharding(self, *module, mlps(kLayers), {.reshard_after_forward = reshard});
      measure([&] { EXPECT_LE(meter.bytes(), shards + slack); });
      torch::optim::Adam optimizer = tests::adam(*module);
      for (int iteration = 0; iteration < 3; ++iteration) {
        int64_t before = 0;
        measure([&] {
          before = meter.bytes();
          meter.restart_peak();
        });
        at::Tensor loss = forward(module, random_input({1, 64}, 1)).sum();
        measure([&] {
          // One copy of what is whole; a layer gathered beside the root's.
          EXPECT_LE(meter.peak() - before, (reshard ? layer + rest : all) + slack);
          meter.restart_peak();
        });
        loss.backward();
        loss.reset();
        measure([&] {
          // One more layer ahead, the gradients of one layer on their way and of one being made,
          // the first of them once more; and the shards' gradients.
          EXPECT_LE(meter.peak() - before,
                    (reshard ? 2 * layer + rest : all) + 3 * layer + rest + shards + slack);
          EXPECT_LE(meter.bytes() - before, shards + slack);
        });
        optimizer.step();
        measure([&] { EXPECT_LE(meter.bytes(), 4 * shards + slack); });
        optimizer.zero_grad();
        measure([&] { EXPECT_LE(meter.bytes(), 3 * shards + slack); });
      }
    });
  }
}

// Each gradient is copied once; parameters never, unless they are not sharded along dim 0.
TEST(FullyShardMemory, BytesCopied) {
  on_ranks(2, [](Rank& self) {
    for (const int64_t dim : {0, 1}) {
      const auto linear =
          std::make_shared<torch::nn::LinearImpl>(torch::nn::LinearOptions(8, 16).bias(false));
      const auto bytes = static_cast<int64_t>(linear->weight.nbytes());
      const auto unit = fully_shard(
          *linear, self.group, {.shard_placement_fn = [dim](const at::Tensor&) { return dim; }});
      const at::Tensor output = forward(linear, at::ones({2, 8}));
      EXPECT_EQ(unit->bytes_copied(), dim == 0 ? 0 : bytes);
      output.sum().backward();
      EXPECT_EQ(unit->bytes_copied(), dim == 0 ? bytes : 3 * bytes);
    }
  });
}

TEST(FullyShard, test_clip_grad_norm) {
  for (const double norm_type : {2.0, 1.0, 3.0, std::numeric_limits<double>::infinity()}) {
    on_ranks(4, [&](Rank& self) {
      const tests::TransformerArgs args{.layers = 2, .tied = false};
      const ModulePtr plain = tests::make_transformer(args, 42);
      const ModulePtr module = tests::make_transformer(args, 42);
      Sharding sharding(self, *module, blocks(2), {});
      for (int iteration = 0; iteration < 2; ++iteration) {
        for (const ModulePtr& each : {plain, module}) {
          each->zero_grad();
          forward(each, random_tokens({2, 8}, 64, data_seed(iteration, self.rank)))
              .sum()
              .backward();
        }
        tests::average_grads(*plain, *self.by_hand);
        const double want = torch::nn::utils::clip_grad_norm_(plain->parameters(), 0.25, norm_type);
        self.log->clear();
        const at::Tensor got = clip_grad_norm_(module->parameters(), *self.group, 0.25, norm_type);
        EXPECT_EQ(self.log->count("allreduce"), 1);
        EXPECT_EQ(self.log->calls().size(), 1u);
        EXPECT_NEAR(got.item<double>() / want, 1, 1e-9);
        EXPECT_GT(want, 0.25);  // something was clipped
        EXPECT_EQ(shard_difference(*plain, *module, self), "") << norm_type;
      }
    });
  }
  on_ranks(1, [](Rank& self) {
    EXPECT_THROW(clip_grad_norm_({at::ones({1})}, *self.group, -1), std::invalid_argument);
  });
}

// Frozen weights before and behind trained ones: they are still needed once all gradients are
// there.
TEST(FullyShard, FrozenParameters) {
  for (const bool checkpointed : {false, true}) {
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
      Sharding sharding(self, *module, blocks(3), {.reshard_after_forward = true});
      torch::optim::Adam plain_optimizer = tests::adam(*plain), optimizer = tests::adam(*module);
      for (int iteration = 0; iteration < 3; ++iteration) {
        for (const ModulePtr& each : {plain, module}) {
          each->zero_grad();
          forward(each, random_tokens({2, 8}, 64, data_seed(iteration, self.rank)))
              .sum()
              .backward();
        }
        tests::expect_equal_step(self, *plain, plain_optimizer, *module, optimizer);
        EXPECT_FALSE(module->named_parameters()["tokens.weight"].grad().defined());
      }
      // Shards' gradients share one buffer, in which frozen parameters have no place.
      int64_t trained = 0;
      for (const auto& weight : module->parts()[0]->parameters())
        trained += weight.requires_grad() ? weight.numel() : 0;
      const at::Tensor grad = module->named_parameters()["block0.up.weight"].grad();
      EXPECT_LE(static_cast<int64_t>(grad.storage().nbytes()), 8 * (trained + 2 * 8 + 16));
    });
  }
}

// Ranks that use different parameters still post the same; what no rank used keeps no gradient.
struct Branch : torch::nn::Module {
  explicit Branch(uint64_t seed) {
    for (const char* name : {"a", "b", "c"}) {
      weights.push_back(register_parameter(name, random_input({3}, ++seed)));
    }
  }
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor y = x * weights[static_cast<size_t>(used)];
    return both ? y + x * weights[1] : y;
  }
  int used = 0;
  bool both = false;
  std::vector<at::Tensor> weights;
};

struct Branches : tests::TestModule {
  Branches() {
    for (int i = 0; i < 3; ++i) {
      branches.push_back(register_module("branch" + std::to_string(i),
                                         std::make_shared<Branch>(static_cast<uint64_t>(10 * i))));
    }
  }
  at::Tensor forward(const at::Tensor& input) override {
    at::Tensor x = input;
    for (const auto& branch : branches) x = at::tanh(fsdp::forward(branch, x));
    return x;
  }
  std::vector<std::shared_ptr<Branch>> branches;
};

TEST(FullyShard, UnusedParameters) {
  on_ranks(2, [](Rank& self) {
    const auto plain = std::make_shared<Branches>(), module = std::make_shared<Branches>();
    Sharding sharding(self, *module, {{"branch0"}, {"branch1"}, {"branch2"}},
                      {.reshard_after_forward = true});
    torch::optim::Adam plain_optimizer = tests::adam(*plain), optimizer = tests::adam(*module);
    for (int iteration = 0; iteration < 4; ++iteration) {
      for (const auto& each : {plain, module}) {
        each->zero_grad();
        for (size_t i = 0; i < 3; ++i)
          each->branches[i]->used = (iteration + self.rank * static_cast<int>(i)) % 2;
      }
      self.log->clear();
      const at::Tensor x = random_input({2, 3}, data_seed(iteration, self.rank)).requires_grad_();
      plain->forward(x).sum().backward();
      forward(module, x).sum().backward();
      EXPECT_EQ(self.log->count(kReduce), 3);
      for (at::Tensor& weight : plain->parameters()) {
        at::Tensor& grad = weight.mutable_grad();
        std::vector<at::Tensor> used = {at::full({1}, grad.defined() ? 1.0 : 0.0)};
        self.by_hand->allreduce(used)->wait();
        if (!grad.defined()) grad = at::zeros_like(weight);
        std::vector<at::Tensor> grads = {grad};
        self.by_hand->allreduce(grads)->wait();
        grad.div_(2);
        if (used[0].item<double>() == 0) grad.reset();
      }
      EXPECT_EQ(shard_difference(*plain, *module, self), "") << iteration;
      EXPECT_FALSE(module->branches[0]->weights[2].grad().defined());
      plain_optimizer.step();
      optimizer.step();
      EXPECT_EQ(shard_difference(*plain, *module, self), "") << iteration;
    }
  });
}

// Two losses over one trunk, the second through a graph that was kept.
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
            forward(each, random_tokens({2, 8}, 64, data_seed(iteration, self.rank)));
        trunk.square().sum().backward({}, /*retain_graph=*/true);
        trunk.sum().backward();
      }
      tests::average_grads(*plain, *self.by_hand);
      EXPECT_EQ(shard_difference(*plain, *module, self), "") << iteration;
    }
  });
}

// Several outputs, one of which is an input passed on, and one that is used in several places.
TEST(FullyShard, SeveralOutputs) {
  struct Pair : torch::nn::Module {
    explicit Pair(uint64_t seed) : mlp(register_module("mlp", tests::make_mlp(4, 2, seed))) {}
    std::tuple<at::Tensor, at::Tensor> forward(const at::Tensor& x, const at::Tensor& bias) {
      return {mlp->forward(x) + bias, bias};
    }
    ModulePtr mlp;
  };
  struct Pairs : torch::nn::Module {
    Pairs() {
      for (uint64_t i = 0; i < 3; ++i)
        pairs.push_back(register_module("pair" + std::to_string(i), std::make_shared<Pair>(i)));
      bias = register_parameter("bias", random_input({4}, 9));
    }
    at::Tensor forward(const at::Tensor& input) {
      at::Tensor x = input, kept = input, passed = bias * 2;
      for (const auto& pair : pairs) {
        std::tie(x, passed) = fsdp::forward(pair, x, passed);
        kept = kept + x * x;
      }
      return kept + passed;
    }
    std::vector<std::shared_ptr<Pair>> pairs;
    at::Tensor bias;
  };
  on_ranks(2, [](Rank& self) {
    const auto plain = std::make_shared<Pairs>(), module = std::make_shared<Pairs>();
    Sharding sharding(self, *module, {{"pair0"}, {"pair1"}, {"pair2"}}, {});
    torch::optim::Adam plain_optimizer = tests::adam(*plain), optimizer = tests::adam(*module);
    for (int iteration = 0; iteration < 3; ++iteration) {
      for (const auto& each : {plain, module}) {
        each->zero_grad();
        forward(each, random_input({2, 4}, data_seed(iteration, self.rank))).sum().backward();
      }
      tests::expect_equal_step(self, *plain, plain_optimizer, *module, optimizer);
    }
  });
}

// Three stems that all see data: which of their parameters a rank uses does not change the order.
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
      for (const auto& stem : stems) sum = sum + at::tanh(fsdp::forward(stem, input));
      return fsdp::forward(mlp, sum);
    }
    std::vector<std::shared_ptr<Branch>> stems;
    ModulePtr mlp;
  };
  on_ranks(2, [](Rank& self) {
    const auto plain = std::make_shared<Stems>(), module = std::make_shared<Stems>();
    // A unit of which one rank uses one parameter, the other two.
    for (const auto& each : {plain, module}) each->stems[2]->both = self.rank == 0;
    Sharding sharding(self, *module, {{"stem0"}, {"stem1"}, {"stem2"}, {"mlp"}},
                      {.reshard_after_forward = true});
    for (const auto& each : {plain, module})
      forward(each, random_input({2, 3}, data_seed(0, self.rank))).sum().backward();
    EXPECT_EQ(self.log->count(kReduce), 4);
    for (const auto& [name, weight] : plain->named_parameters().pairs()) {
      const bool used = name == "stem2.b" || weight.grad().defined();
      at::Tensor grad = weight.grad().defined() ? weight.grad() : at::zeros_like(weight);
      std::vector<at::Tensor> grads = {grad};
      self.by_hand->allreduce(grads)->wait();
      if (used) at::Tensor(weight).mutable_grad() = grad.div_(2);
    }
    EXPECT_EQ(shard_difference(*plain, *module, self), "");
  });
}

// The norm of halves is taken in fp32: their squares are nothing, or too much.
TEST(FullyShard, ClipGradNormOfHalves) {
  on_ranks(2, [](Rank& self) {
    for (const double size : {1e-5, 1e3}) {
      const at::Tensor weight = at::zeros({600}, at::kHalf).requires_grad_();
      weight.mutable_grad() = at::full({600}, size, at::kHalf);
      const double want = weight.grad().to(at::kDouble).norm().item<double>() * std::sqrt(2.0);
      EXPECT_NEAR(clip_grad_norm_({weight}, *self.group, 1e9).item<double>() / want, 1, 1e-5);
    }
  });
}

TEST(FullyShardComm, test_set_unshard_in_backward) {
  on_ranks(2, [](Rank& self) {
    for (const bool unshard : {true, false}) {
      const ModulePtr module = tests::make_transformer({.layers = 2, .tied = false}, 42);
      Sharding sharding(self, *module, {{"tokens"}, {"block0"}, {"block1"}},
                        {.reshard_after_forward = true});
      sharding.units[0]->set_unshard_in_backward(unshard);
      const at::Tensor loss = forward(module, random_tokens({2, 8}, 64, 1)).sum();
      self.log->clear();
      loss.backward();
      EXPECT_EQ(self.log->count(kGather), unshard ? 4 : 3);
      EXPECT_EQ(self.log->count(kReduce), 4);
    }
  });
}

// Forward prefetch gathers ahead, and not again in backward.
TEST(FullyShard, ExplicitPrefetchGathersAhead) {
  for (const bool checkpointed : {false, true}) {
    on_ranks(2, [&](Rank& self) {
      const tests::TransformerArgs args{.layers = 4, .checkpointed = checkpointed};
      const ModulePtr module = tests::make_transformer(args, 42);
      const auto trace = std::make_shared<Trace>();
      Sharding sharding(self, *module, blocks(4), {.reshard_after_forward = true, .trace = trace});
      auto& units = sharding.units;
      units[0]->set_modules_to_forward_prefetch({units[1].get(), units[2].get()});
      units[3]->set_modules_to_backward_prefetch({units[2].get(), units[1].get()});
      const at::Tensor loss = forward(module, random_tokens({2, 8}, 64, 1)).sum();
      using Names = std::vector<std::string>;
      EXPECT_EQ(events(*trace, {Event::kUnshard, Event::kReshard}),
                (Names{"the root", "block0", "block1", "block2", "block0", "block1", "block2",
                       "block3", "block3", "the root"}));
      trace->clear();
      loss.backward();
      EXPECT_EQ(events(*trace, {Event::kUnshard, Event::kPostBackward}),
                (Names{"the root", "block3", "block2", "block1", "post block3", "post block2",
                       "block0", "post block1", "post block0", "post the root"}));
    });
  }
}

// A layer that is called twice in parts that are checkpointed apart has its gradients in two goes.
TEST(FullyShard, ALayerInTwoCheckpointedParts) {
  for (const bool driven : {false, true}) {
    on_ranks(2, [&](Rank& self) {
      const ModulePtr plain = tests::make_mlps(4, 1, 42), module = tests::make_mlps(4, 1, 42);
      Sharding sharding(self, *module, mlps(1), {.reshard_after_forward = true});
      const auto stage = driven ? sharding.root().data_parallel() : nullptr;
      const auto twice = [](const ModulePtr& of, const at::Tensor& input) {
        const auto layer = std::dynamic_pointer_cast<tests::TestModule>(of->parts()[0]);
        const auto part = [layer](const std::vector<at::Tensor>& in) {
          return std::vector{forward(layer, in[0])};
        };
        const auto whole = [&](const std::vector<at::Tensor>& in) {
          return executor::checkpoint(part, executor::checkpoint(part, in));
        };
        return call(*of, whole, {input})[0].sum();
      };
      for (int iteration = 0; iteration < 2; ++iteration) {
        plain->zero_grad();
        module->zero_grad();
        const at::Tensor input = random_input({2, 4}, data_seed(iteration, self.rank));
        twice(plain, input.clone().requires_grad_()).backward();
        if (stage) {
          stage->unshard();
          stage->wait_unshard();
          stage->before_backward(0, /*last=*/true);
        }
        twice(module, input.clone().requires_grad_()).backward();
        if (stage) {
          stage->reduce_grad();
          stage->wait_reduce();
          stage->reshard();
        }
        for (const auto& [name, weight] : plain->named_parameters().pairs()) {
          if (!weight.grad().defined()) continue;
          std::vector<at::Tensor> grads = {weight.grad()};
          self.by_hand->allreduce(grads)->wait();
          grads[0].div_(2);
        }
        EXPECT_EQ(shard_difference(*plain, *module, self), "") << driven << iteration;
      }
    });
  }
}

// Two forwards, then a backward for each.
TEST(FullyShard, TwoForwardsThenTwoBackwards) {
  on_ranks(2, [](Rank& self) {
    const ModulePtr plain = tests::make_mlps(4, 3, 42), module = tests::make_mlps(4, 3, 42);
    const auto trace = std::make_shared<Trace>();
    Sharding sharding(self, *module, mlps(3), {.reshard_after_forward = true, .trace = trace});
    for (int iteration = 0; iteration < 2; ++iteration) {
      for (const ModulePtr& each : {plain, module}) {
        each->zero_grad();
        std::vector<at::Tensor> losses;
        for (const int which : {0, 1}) {
          losses.push_back(
              forward(each, random_input({2, 4}, data_seed(which, self.rank))).square().sum());
        }
        for (const at::Tensor& loss : losses) {
          trace->clear();
          loss.backward();
        }
      }
      tests::average_grads(*plain, *self.by_hand);
      EXPECT_EQ(shard_difference(*plain, *module, self), "") << iteration;
      // In the second backward too a layer is reduced before the next one computes.
      const auto reduced = std::ranges::find(*trace, TraceEntry{Event::kReduce, "`mlp2`"});
      const auto next = std::ranges::find(*trace, TraceEntry{Event::kPostBackward, "`mlp0`"});
      EXPECT_LT(reduced - trace->begin(), next - trace->begin());
    }
  });
}

// fp16 divides in two halves around the sum.
TEST(FullyShard, HalfPrecision) {
  on_ranks(4, [](Rank& self) {
    const auto linear =
        std::make_shared<torch::nn::LinearImpl>(torch::nn::LinearOptions(8, 5).bias(false));
    linear->to(at::kHalf);
    const auto unit = fully_shard(*linear, self.group);
    const at::Tensor input = at::full({1, 8}, 4.0 * (self.rank + 1), at::kHalf);
    forward(linear, input).sum().backward();
    EXPECT_TRUE(
        at::equal(linear->weight.grad(),
                  at::full({self.rank == 3 ? 0 : (self.rank == 2 ? 1 : 2), 8}, 10, at::kHalf)));
  });
}

// A step that failed leaves nothing that hurts the next one.
TEST(FullyShard, ABackwardThatStopsOnAnError) {
  on_ranks(2, [](Rank& self) {
    const ModulePtr plain = tests::make_mlps(4, 2, 42), module = tests::make_mlps(4, 2, 42);
    Sharding sharding(self, *module, mlps(2), {});
    const at::Tensor output = forward(module, random_input({2, 4}, 7));
    output.register_hook(
        [](const at::TensorBase&) { throw std::runtime_error("a hook of the user's"); });
    EXPECT_THROW((output * 1).sum().backward(), std::runtime_error);
    const at::Tensor input = random_input({2, 4}, data_seed(0, self.rank));
    plain->forward(input).sum().backward();
    forward(module, input).sum().backward();
    tests::average_grads(*plain, *self.by_hand);
    EXPECT_EQ(shard_difference(*plain, *module, self), "");
  });
}

// Evaluation leaves nothing behind for a backward to come.
TEST(FullyShard, EvaluationBetweenSteps) {
  on_ranks(2, [](Rank& self) {
    const ModulePtr plain = tests::make_mlps(4, 2, 42), module = tests::make_mlps(4, 2, 42);
    const auto trace = std::make_shared<Trace>();
    Sharding sharding(self, *module, mlps(2), {.trace = trace});
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
      // Between forward and backward it is the shards' gradients that are cleared.
      module->zero_grad();
      plain->forward(input).sum().backward();
      trace->clear();
      output.sum().backward();
      // The last MLP's output is the root's: its backward begins first.
      EXPECT_EQ(events(*trace, {Event::kPrefetch}), (std::vector<std::string>{"mlp0", "", ""}));
      tests::average_grads(*plain, *self.by_hand);
      EXPECT_EQ(shard_difference(*plain, *module, self), "");
    }
  });
}

// Two forwards, then one backward through both, as DPO has it.
TEST(FullyShard, TwoForwardsBeforeOneBackward) {
  for (const bool checkpointed : {false, true}) {
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
            loss = loss + forward(each, random_tokens({2, 8}, 64, data_seed(which, self.rank)))
                              .square()
                              .mean();
          }
          loss.backward();
        }
        tests::average_grads(*plain, *self.by_hand);
        EXPECT_EQ(shard_difference(*plain, *module, self), "") << checkpointed << iteration;
      }
    });
  }
}

void expect_errors(int ranks, const std::string& what, const std::function<void(Rank&)>& body) {
  for (const std::string& error : errors_on_ranks(ranks, body))
    EXPECT_NE(error.find(what), std::string::npos) << error << "\nwanted: " << what;
}

TEST(FullyShardErrors, Misuse) {
  expect_errors(2, "fully_shard: a second call for", [](Rank& self) {
    const ModulePtr module = tests::make_mlp(4, 2, 42);
    const auto unit = fully_shard(*module, self.group);
    (void)fully_shard(*module, self.group);
  });
  expect_errors(2, "parameter `scale`, Float [] on cpu, is a scalar", [](Rank& self) {
    torch::nn::Module module;
    module.register_parameter("scale", at::ones({}));
    (void)fully_shard(module, self.group);
  });
  expect_errors(2, "parameter `w`, Float [4] on meta: give it memory first", [](Rank& self) {
    torch::nn::Module module;
    module.register_parameter("w", at::ones({4}, at::kMeta));
    (void)fully_shard(module, self.group);
  });
  expect_errors(2, "parameter `b`, Double [4] on cpu, is not as `a`: wanted one dtype",
                [](Rank& self) {
                  torch::nn::Module module;
                  module.register_parameter("a", at::ones({4}));
                  module.register_parameter("b", at::ones({4}, at::kDouble));
                  (void)fully_shard(module, self.group);
                });
  expect_errors(3, "dimension 1 does not divide evenly by 3 ranks", [](Rank& self) {
    torch::nn::Module module;
    module.register_parameter("w", at::ones({4, 4}));
    (void)fully_shard(module, self.group,
                      {.shard_placement_fn = [](const at::Tensor&) { return int64_t{1}; }});
  });
  expect_errors(4, "reshard_after_forward 3: wanted a divisor of 4 ranks", [](Rank& self) {
    const ModulePtr module = tests::make_mlp(4, 2, 42);
    (void)fully_shard(*module, self.group, {.reshard_after_forward = 3});
  });
  expect_errors(4, "wanted a mesh", [](Rank& self) {
    const ModulePtr module = tests::make_mlp(4, 2, 42);
    (void)fully_shard(*module, self.group, {.reshard_after_forward = 2});
  });
  // Tied over two groups: both names.
  expect_errors(2, "parameter `output.weight` is also `tokens.weight` of another group",
                [](Rank& self) {
                  const tests::TransformerArgs args{.layers = 1, .tied = true};
                  const ModulePtr module = tests::make_transformer(args, 42);
                  const auto tokens = fully_shard(*module->named_children()["tokens"], self.group);
                  (void)fully_shard(*module, self.group);
                });
  expect_errors(
      3,
      "the ranks do not have the same parameters: rank 0 has `layer0.weight`, Double [5, "
      "4], along 0 where rank 2 has `layer0.weight`, Double [6, 4], along 0",
      [](Rank& self) {
        const ModulePtr module = tests::make_two_linears({{4, self.rank == 2 ? 6 : 5}}, 42);
        (void)fully_shard(*module, self.group);
      });
}

TEST(FullyShardErrors, BackwardsThatItCannotDo) {
  expect_errors(2, "fully_shard: a backward with create_graph through the root", [](Rank& self) {
    const ModulePtr module = tests::make_mlp(4, 2, 42);
    const auto unit = fully_shard(*module, self.group);
    const at::Tensor x = random_input({2, 4}, 1).requires_grad_();
    (void)torch::autograd::grad({forward(module, x).sum()}, {x}, {}, true, /*create_graph=*/true);
  });
  expect_errors(2, "fully_shard: backward through a module whose unit is gone", [](Rank& self) {
    const ModulePtr module = tests::make_mlp(4, 2, 42);
    at::Tensor loss;
    {
      const auto unit = fully_shard(*module, self.group);
      loss = forward(module, random_input({2, 4}, 1)).sum();
    }
    loss.backward();
  });
  expect_errors(
      2, "an earlier backward stopped on an error after its reductions had begun", [](Rank& self) {
        const ModulePtr module = tests::make_mlps(4, 2, 42);
        Sharding sharding(self, *module, mlps(2), {});
        const auto step = [&](bool stops) {
          const at::Tensor x = random_input({2, 4}, 1).requires_grad_();
          if (stops) {
            x.register_hook(
                [](const at::TensorBase&) { throw std::runtime_error("a hook of the user's"); });
          }
          forward(module, x * 1).sum().backward();
        };
        EXPECT_THROW(step(true), std::runtime_error);
        step(false);
      });
  expect_errors(2, "data_parallel of `mlp0`, which is part of another unit", [](Rank& self) {
    const ModulePtr module = tests::make_mlps(4, 1, 42);
    Sharding sharding(self, *module, mlps(1), {});
    (void)sharding.units[0]->data_parallel();
  });
  expect_errors(2, "fully_shard: 4 parameters of the root require a gradient, and 3 did",
                [](Rank& self) {
                  const ModulePtr module = tests::make_mlp(4, 2, 42);
                  module->parameters()[0].set_requires_grad(false);
                  const auto unit = fully_shard(*module, self.group);
                  module->parameters()[0].set_requires_grad(true);
                  forward(module, random_input({2, 4}, 1));
                });
  expect_errors(2, "is sharded already", [](Rank& self) {
    const ModulePtr module = tests::make_mlps(4, 1, 42);
    for (at::Tensor& weight : module->parameters()) weight.set_requires_grad(false);
    const auto whole = fully_shard(*module, self.group);
    (void)fully_shard(*module->parts()[0], self.group);
  });
}

TEST(FullyShardErrors, AChangedParameter) {
  expect_errors(2,
                "parameter `in_proj.weight` of the root, which is sharded, was replaced: found "
                "Float [4, 4] on cpu, wanted the Double [4, 4] on cpu",
                [](Rank& self) {
                  const ModulePtr module = tests::make_mlp(4, 2, 42);
                  const auto unit = fully_shard(*module, self.group);
                  module->to(at::kFloat);
                  forward(module, random_input({2, 4}, 1));
                });
  // Some of a group's parameters whole, some not.
  expect_errors(2,
                "parameter `in_proj.weight` of `mlp0`, which is sharded, was replaced: found "
                "Double [16, 4] on cpu, wanted the Double [8, 4]",
                [](Rank& self) {
                  const ModulePtr module = tests::make_mlps(4, 1, 42);
                  Sharding sharding(self, *module, mlps(1), {});
                  sharding.units[0]->unshard();
                  const at::Tensor whole = module->parameters()[2].detach();
                  sharding.units[0]->reshard();
                  module->parameters()[2].set_data(whole);
                  forward(module, random_input({2, 4}, 1));
                });
}

TEST(FullyShardErrors, ForwardThatTheExecutorsProgramDoesNotAllow) {
  expect_errors(2, "fully_shard: forward of `mlp0`, whose `in_proj.weight` is sharded: the",
                [](Rank& self) {
                  const ModulePtr module = tests::make_mlps(4, 1, 42);
                  Sharding sharding(self, *module, mlps(1), {});
                  const auto stage = sharding.root().data_parallel();
                  stage->unshard();
                  stage->wait_unshard();
                  module->forward(random_input({2, 4}, 1));
                  stage->reshard();
                  module->forward(random_input({2, 4}, 1));
                });
}

// The others hear of a rank that fails.
TEST(FullyShardErrors, ARankThatFails) {
  const auto errors = errors_on_ranks(
      2,
      [](Rank& self) {
        const ModulePtr module = tests::make_mlps(4, 2, 42);
        Sharding::injector = [&self](const comms::CallRecord& call) {
          comms::Fault fault;
          fault.refuse = self.rank == 1 && call.op == kReduce;
          return fault;
        };
        Sharding sharding(self, *module, mlps(2), {});
        forward(module, random_input({2, 4}, 1)).sum().backward();
      },
      nullptr, std::chrono::milliseconds(300));
  EXPECT_NE(errors[0].find("fully_shard: the "), std::string::npos) << errors[0];
  EXPECT_NE(errors[1].find("injected"), std::string::npos) << errors[1];
}

}  // namespace
}  // namespace pipewright::fsdp
