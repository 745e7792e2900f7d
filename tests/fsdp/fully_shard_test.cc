// PyTorch's test_fully_shard_training.py, under its names, with ranks as threads; gloo_test runs
// some of it with ranks as processes. Every comparison steps the optimizer first, and compares
// gradients and parameters with those of a plain copy whose gradients are averaged by hand.
#include "pipewright/fsdp/fully_shard.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>

#include <algorithm>

#include "tests/fsdp/sharding.h"
#include "tests/support/ranks/ground.h"
#include "tests/support/training/modules.h"
#include "tests/support/training/on_ranks.h"
#include "tests/support/training/parity.h"

namespace pipewright::fsdp {
namespace {

using tests::blocks;
using tests::Checkpointed;
using tests::data_seed;
using tests::Groups;
using tests::kGather;
using tests::kReduce;
using tests::Late;
using tests::Loss;
using tests::mlps;
using tests::ModulePtr;
using tests::on_ranks;
using tests::Parity;
using tests::random_input;
using tests::Rank;
using tests::Sharding;
using tests::shards_of;
using tests::sum_of;
using tests::sum_of_tokens;
using tests::TransformerArgs;

// Trains ten iterations next to a plain copy; `each` runs before each iteration.
void expect_parity(Rank& self, const ModulePtr& plain, const ModulePtr& module, const Loss& loss,
                   const Groups& groups, const Options& options = {},
                   const std::function<void(Sharding&, int iteration)>& each = nullptr,
                   tests::OptimizerPtr (*make_optimizer)(torch::nn::Module&) = tests::adam) {
  Parity parity(self, plain, module, shards_of(self, options.shard_placement_fn), make_optimizer);
  Sharding wrapped(self, *module, groups, options);
  EXPECT_EQ(parity.difference(), "") << "at first";
  parity.train(loss, [&](int iteration) {
    if (each) each(wrapped, iteration);
  });
}

void expect_parity(Rank& self, const TransformerArgs& args, const Loss& loss, const Groups& groups,
                   const Options& options = {},
                   const std::function<void(Sharding&, int iteration)>& each = nullptr,
                   tests::OptimizerPtr (*make_optimizer)(torch::nn::Module&) = tests::adam) {
  TransformerArgs plain = args;
  plain.checkpointed = Checkpointed::kNot;
  expect_parity(self, tests::make_transformer(plain, 42), tests::make_transformer(args, 42), loss,
                groups, options, each, make_optimizer);
}

int64_t largest_dim(const at::Tensor& parameter) {
  const at::IntArrayRef sizes = parameter.sizes();
  return std::max_element(sizes.begin(), sizes.end()) - sizes.begin();
}

using Shapes = std::vector<std::pair<int64_t, int64_t>>;
const Shapes kShapes[] = {{{16, 15}, {15, 8}}, {{7, 15}, {15, 3}}, {{16, 17}, {17, 8}}};

TEST(FullyShardTraining, test_root_move_forward_input_to_device) {
  on_ranks(2, [](Rank& self) {
    struct WithoutParameters : torch::nn::Module {
      std::vector<at::Tensor> forward(const at::Tensor& x, const at::Tensor& y0,
                                      const at::Tensor& y1) {
        return {x, y0, y1};
      }
    };
    const auto module = std::make_shared<WithoutParameters>();
    const auto unit = fully_shard(*module, self.group, {.device = at::kMeta});
    for (const at::Tensor& moved : forward(module, at::ones({2}), at::ones({3}), at::ones({3})))
      EXPECT_TRUE(moved.is_meta());
  });
}

TEST(FullyShardTraining, test_root_no_forward_inputs) {
  on_ranks(2, [](Rank& self) {
    struct NoInputs : torch::nn::Module {
      at::Tensor weight = register_parameter("weight", at::ones({4, 4}, tests::here(at::kDouble)));
      int factor = 1;
      at::Tensor forward() { return weight * factor; }
    };
    const auto module = std::make_shared<NoInputs>();
    module->factor = self.rank + 1;
    const auto unit = fully_shard(*module, self.group);
    forward(module).sum().backward();
    EXPECT_TRUE(at::equal(module->weight.grad(), at::full({2, 4}, 1.5, tests::here(at::kDouble))));
  });
}

// Each registered parameter must be this rank's part of the plain copy's, over ranks_of(name)
// ranks.
void expect_sharded(Rank& self, const torch::nn::Module& plain, const torch::nn::Module& module,
                    const std::function<int(const std::string& name)>& ranks_of) {
  const auto want = plain.named_parameters(), got = module.named_parameters();
  for (const auto& [name, tensor] : want.pairs()) {
    const int ranks = ranks_of(name);
    const auto chunks = tensor.chunk(self.group->getSize(), 0);
    const int64_t rows = chunks[0].size(0) * (self.group->getSize() / ranks);
    const int64_t begin = std::min(self.rank % ranks * rows, tensor.size(0));
    const int64_t end = std::min(begin + rows, tensor.size(0));
    EXPECT_TRUE(at::equal(got[name], tensor.slice(0, begin, end))) << name << " over " << ranks;
  }
}

TEST(FullyShardTraining, test_param_registration_after_forward) {
  const std::pair<ReshardAfterForward, int> cases[] = {
      {true, 4}, {false, 1}, {2, 2}, {ReshardAfterForward(), -1}};
  for (const auto& [reshard_after_forward, ranks] : cases) {
    on_ranks(4, [&, option = reshard_after_forward, ranks = ranks](Rank& self) {
      const at::Tensor input = random_input({2, 3}, 42);
      {
        const ModulePtr plain = tests::make_mlp(3, 4, 42), module = tests::make_mlp(3, 4, 42);
        Sharding wrapped(self, *module, {}, {.reshard_after_forward = option});
        expect_sharded(self, *plain, *module, [](auto&) { return 4; });
        forward(module, input);
        // The root unit: its parameters are kept by default.
        expect_sharded(self, *plain, *module, [&](auto&) { return ranks < 0 ? 1 : ranks; });
        wrapped.root().reshard();
        expect_sharded(self, *plain, *module, [](auto&) { return 4; });
      }
      const ModulePtr plain = tests::make_mlps(3, 2, 42), module = tests::make_mlps(3, 2, 42);
      Sharding wrapped(self, *module, {{"mlp0.in_proj"}, {"mlp0.out_proj"}},
                       {.reshard_after_forward = option});
      forward(module, input);
      expect_sharded(self, *plain, *module, [&](const std::string& name) {
        if (ranks >= 0) return ranks;
        return name.starts_with("mlp0") ? 4 : 1;
      });
      for (const auto& unit : wrapped.units) unit->reshard();
      expect_sharded(self, *plain, *module, [](auto&) { return 4; });
    });
  }
}

TEST(FullyShardTraining, test_param_registration_after_backward) {
  for (const ReshardAfterForward& option :
       {ReshardAfterForward(true), ReshardAfterForward(false), ReshardAfterForward(2)}) {
    for (const Groups& groups : {Groups{}, Groups{{"in_proj"}, {"out_proj"}}}) {
      on_ranks(4, [&](Rank& self) {
        const ModulePtr plain = tests::make_mlp(8, 4, 42), module = tests::make_mlp(8, 4, 42);
        Sharding wrapped(self, *module, groups, {.reshard_after_forward = option});
        forward(module, random_input({2, 8}, 42)).sum().backward();
        expect_sharded(self, *plain, *module, [](auto&) { return 4; });
      });
    }
  }
}

TEST(FullyShardTraining, test_train_parity_single_group_shard_dim0) {
  for (const Shapes& shapes : kShapes) {
    for (const int ranks : {2, 4, 8}) {
      on_ranks(ranks, [&](Rank& self) {
        expect_parity(self, tests::make_two_linears(shapes, 42),
                      // Each rank has its own weights: rank 0's are broadcast.
                      tests::make_two_linears(shapes, 42 + static_cast<uint64_t>(self.rank)),
                      sum_of({4, shapes[0].first}), {});
      });
    }
  }
}

TEST(FullyShardTraining, test_train_parity_single_group_shard_largest_dim) {
  for (const int ranks : {2, 4, 8}) {
    on_ranks(ranks, [&](Rank& self) {
      const Shapes shapes = {{32, 16}, {16, 8}};
      expect_parity(self, tests::make_two_linears(shapes, 42), tests::make_two_linears(shapes, 42),
                    sum_of({4, 32}), {}, {.shard_placement_fn = largest_dim});
    });
  }
}

// The transformer of PyTorch's larger rows, and its data.
const TransformerArgs kThreeLayers{.layers = 3, .vocabulary = 1024, .tokens = 64};
const Loss kThreeSequences = sum_of_tokens({3, 64}, 1024);
// The same, smaller: for tests that train many models.
const TransformerArgs kThreeSmallLayers{.layers = 3, .vocabulary = 32, .tokens = 16};
const Loss kThreeShortSequences = sum_of_tokens({3, 16}, 32);

struct MultiGroupCase {
  const char* name;
  ReshardAfterForward reshard_after_forward;
};

class MultiGroup : public testing::TestWithParam<std::tuple<MultiGroupCase, Late>> {};

// With delays, a rank that does not wait for a collective computes with incomplete data.
TEST_P(MultiGroup, test_train_parity_multi_group) {
  const auto& [the, late] = GetParam();
  tests::on_late_ranks(4, late, [option = the.reshard_after_forward](Rank& self) {
    expect_parity(self, kThreeLayers, kThreeSequences, blocks(3),
                  {.reshard_after_forward = option});
  });
}

INSTANTIATE_TEST_SUITE_P(
    ReshardAndLate, MultiGroup,
    testing::Combine(testing::Values(MultiGroupCase{"true", true}, MultiGroupCase{"false", false},
                                     MultiGroupCase{"2", 2}),
                     testing::Values(Late::kNowhere, Late::kAfterForward, Late::kBeforeGather,
                                     Late::kBeforeReduction, Late::kBeforeStep, Late::kEverywhere)),
    [](const auto& of) {
      return std::get<0>(of.param).name + std::string("_") + to_string(std::get<1>(of.param));
    });

class AsyncOp : public testing::TestWithParam<Late> {};

TEST_P(AsyncOp, test_train_parity_multi_group_unshard_async_op) {
  tests::on_late_ranks(4, GetParam(), [](Rank& self) {
    expect_parity(self, kThreeLayers, kThreeSequences, blocks(3), {.reshard_after_forward = true},
                  [](Sharding& wrapped, int) { wrapped.root().set_unshard_async_op(true); });
  });
}

INSTANTIATE_TEST_SUITE_P(LateRanks, AsyncOp,
                         testing::Values(Late::kNowhere, Late::kAfterForward, Late::kBeforeGather,
                                         Late::kBeforeReduction, Late::kBeforeStep,
                                         Late::kEverywhere),
                         [](const auto& of) { return std::string("true_") + to_string(of.param); });

// The user gathers all units ahead of each forward.
TEST(FullyShardTraining, UnshardAsync) {
  on_ranks(4, [](Rank& self) {
    expect_parity(self, kThreeLayers, kThreeSequences, blocks(3), {.reshard_after_forward = true},
                  [](Sharding& wrapped, int) {
                    for (const auto& unit : wrapped.units) unit->unshard_async();
                  });
  });
}

TEST(FullyShardTraining, test_non_root_forward_backward) {
  tests::on_late_ranks(4, Late::kBeforeStep, [](Rank& self) {
    const ModulePtr module = tests::make_mlps(32, 3, 42);
    Parity parity(self, tests::make_mlps(32, 3, 42), module, shards_of(self));
    Sharding wrapped(self, *module, mlps(3), {});
    tests::train_whole_and_part(parity);
  });
}

TEST(FullyShardTraining, test_multi_forward_module) {
  for (const bool chained : {false, true}) {
    for (const auto& [option, gathers] :
         {std::pair{ReshardAfterForward(true), 5}, std::pair{ReshardAfterForward(false), 2},
          std::pair{ReshardAfterForward(2), 5}}) {
      on_ranks(2, [&, option = option, gathers = gathers](Rank& self) {
        expect_parity(self, tests::make_repeated(42, chained), tests::make_repeated(42, chained),
                      sum_of({32, 4}), {{"inner"}}, {.reshard_after_forward = option},
                      [&, gathers = gathers](Sharding&, int iteration) {
                        if (iteration > 0) {
                          EXPECT_EQ(self.log->count(kGather), gathers);
                          EXPECT_EQ(self.log->count(kReduce), 2);
                        }
                        self.log->clear();
                      });
      });
    }
  }
}

// Units by the type of their modules: the same as by hand.
TEST(FullyShardTraining, AutoWrapPolicy) {
  on_ranks(2, [](Rank& self) {
    const ModulePtr module = tests::make_mlps(8, 2, 42);
    Parity parity(self, tests::make_mlps(8, 2, 42), module, shards_of(self));
    const Options options{.reshard_after_forward = true,
                          .auto_wrap_policy = wrap_types<torch::nn::LinearImpl>()};
    Sharding wrapped(self, *module, {}, options);
    EXPECT_TRUE(wrapped.root().parameter_names().empty());
    parity.train(sum_of({2, 8}), [&](int) { self.log->clear(); });
    // One unit per Linear, gathered for forward and backward.
    EXPECT_EQ(self.log->count(kGather), 2 * 5);
  });
}

TEST(FullyShardTraining, test_explicit_prefetching) {
  on_ranks(4, [](Rank& self) {
    expect_parity(
        self, {.layers = 8}, sum_of_tokens({2, 8}, 8), blocks(8), {},
        [&](Sharding& wrapped, int iteration) {
          if (iteration > 0) return;
          std::vector<std::shared_ptr<Sharded>>& units = wrapped.units;
          for (size_t i = 0; i < 8; ++i) {
            std::vector<Sharded*> next, previous;
            for (size_t j = i + 1; j < std::min<size_t>(i + 3, 8); ++j)
              next.push_back(units[j].get());
            for (size_t j = i; j-- > (i < 2 ? 0 : i - 2);) previous.push_back(units[j].get());
            units[i]->set_modules_to_forward_prefetch(next);
            units[i]->set_modules_to_backward_prefetch(previous);
          }
        },
        tests::adam_w);
  });
}

// The same data in all iterations. Dropout only with ranks as processes, which have their own
// random generators.
TEST(FullyShardTraining, test_train_parity_with_activation_checkpointing) {
  const Groups mem_eff = {
      {"block0"}, {"block1", "block2"}, {"tokens", "positions"}, {"norm", "output"}};
  const Groups mem_eff_weight_tied = {{"tokens", "output"}, {"block0"}, {"block1"}, {"block2"}};
  struct Case {
    Groups groups;
    bool tied;
  };
  const Loss loss = [](const ModulePtr& module, int iteration, int rank) {
    at::manual_seed(static_cast<uint64_t>(iteration));
    return kThreeShortSequences(module, 0, rank);
  };
  for (const Case& the : {Case{blocks(3), false}, Case{blocks(3), true}, Case{mem_eff, false},
                          Case{mem_eff_weight_tied, true}}) {
    for (const bool reshard_after_forward : {true, false}) {
      for (const Checkpointed where :
           {Checkpointed::kAround, Checkpointed::kInside, Checkpointed::kWrapper}) {
        on_ranks(2, [&](Rank& self) {
          TransformerArgs args = kThreeSmallLayers;
          args.tied = the.tied;
          args.checkpointed = where;
          args.dropout = tests::ranks_are_processes() ? 0.1 : 0;
          expect_parity(self, args, loss, the.groups,
                        {.reshard_after_forward = reshard_after_forward},
                        [&](Sharding& sharding, int) {
                          // The backward of embeddings does not read their weights.
                          if (the.groups == mem_eff)
                            sharding.units[2]->set_unshard_in_backward(false);
                        });
        });
      }
    }
  }
}

TEST(FullyShardTraining, test_train_parity_shard_placement_fn_shard_largest_dim) {
  for (const int ranks : {2, 4, 8}) {
    on_ranks(ranks, [](Rank& self) {
      expect_parity(self, {.layers = 3}, sum_of_tokens({2, 16}, 8), blocks(3),
                    {.shard_placement_fn = largest_dim}, nullptr, tests::adam_w);
    });
  }
}

TEST(FullyShardTraining, test_shard_placement_fn_contiguous_params_grads) {
  on_ranks(4, [](Rank& self) {
    struct Looks : torch::nn::Module {
      Looks() : mlp(register_module("mlp", tests::make_mlp(4, 4, 42))) {}
      at::Tensor forward(const at::Tensor& x) {
        for (const at::Tensor& weight : parameters()) {
          EXPECT_TRUE(weight.is_contiguous());
          EXPECT_NE(weight.numel(), 0);
        }
        EXPECT_EQ(parameters()[0].sizes(), at::IntArrayRef({16, 4}));
        return mlp->forward(x);
      }
      ModulePtr mlp;
    };
    const auto module = std::make_shared<Looks>();
    const auto unit =
        fully_shard(*module, self.group, {.shard_placement_fn = [](const auto& weight) {
          return weight.dim() > 1 ? int64_t{1} : int64_t{0};
        }});
    EXPECT_EQ(module->parameters()[0].sizes(), at::IntArrayRef({16, 1}));
    forward(module, random_input({2, 4}, data_seed(0, self.rank))).sum().backward();
    for (const at::Tensor& weight : module->parameters()) {
      EXPECT_TRUE(weight.is_contiguous());
      EXPECT_TRUE(weight.grad().is_contiguous());
      EXPECT_EQ(weight.grad().sizes(), weight.sizes());
    }
  });
}

TEST(FullyShardTraining, test_train_parity_with_shared_params) {
  for (const Checkpointed checkpointed : {Checkpointed::kNot, Checkpointed::kAround}) {
    for (const ReshardAfterForward& option :
         {ReshardAfterForward(false), ReshardAfterForward(true)}) {
      // 17 rows: the last rank has fewer.
      for (const int64_t vocabulary : {8, 17}) {
        on_ranks(4, [&](Rank& self) {
          expect_parity(self, {.layers = 3, .vocabulary = vocabulary, .checkpointed = checkpointed},
                        sum_of_tokens({2, 16}, vocabulary), blocks(3),
                        {.reshard_after_forward = option});
        });
      }
    }
  }
}

TEST(FullyShardTraining, test_gradient_accumulation) {
  for (const tests::AccumulationRow& row : tests::accumulation_rows()) {
    on_ranks(4, [&](Rank& self) {
      tests::expect_accumulation(self, row, /*replicas=*/1, /*reduce_scatter_only=*/false);
    });
  }
}

TEST(FullyShardTraining, test_1f1b_microbatching) {
  for (const bool unshards_first : {false, true}) {
    for (const bool reshards_last : {false, true}) {
      on_ranks(4, [&](Rank& self) {
        const ModulePtr module = tests::make_transformer({}, 42);
        Parity parity(self, tests::make_transformer({}, 42), module, shards_of(self),
                      tests::adam_w);
        Sharding wrapped(self, *module, blocks(2), {.reshard_after_forward = false});
        if (unshards_first) {
          for (const auto& unit : wrapped.units) unit->unshard_async();
        }
        for (int microbatch = 0; microbatch < 3; ++microbatch) {
          const bool last = microbatch == 2;
          wrapped.root().set_requires_gradient_sync(last);
          wrapped.root().set_is_last_backward(last);
          if (reshards_last) wrapped.root().set_reshard_after_backward(last);
          parity.backward(sum_of_tokens({2, 16}, 8), microbatch);
        }
        EXPECT_EQ(self.log->count(kGather), reshards_last ? 3 : 9);
        parity.step();
      });
    }
  }
}

// A method that is not called forward, through call().
TEST(FullyShardTraining, test_register_fsdp_forward_method) {
  on_ranks(2, [](Rank& self) {
    expect_parity(self, tests::make_vit(42), tests::make_vit(42), sum_of({4, 3, 224, 224}),
                  {{"vit"}});
  });
}

TEST(FullyShardTraining, test_train_parity_single_worldsize1) {
  for (const Shapes& shapes : kShapes) {
    on_ranks(1, [&](Rank& self) {
      const ModulePtr module = tests::make_two_linears(shapes, 42);
      const auto weights = module->parameters();
      const void* memory = weights[0].data_ptr();
      expect_parity(self, tests::make_two_linears(shapes, 42), module, sum_of({4, shapes[0].first}),
                    {}, {},
                    [&](Sharding& wrapped, int) { EXPECT_EQ(wrapped.root().bytes_copied(), 0); });
      EXPECT_TRUE(self.log->calls().empty());
      EXPECT_EQ(weights[0].data_ptr(), memory);
    });
  }
}

}  // namespace
}  // namespace pipewright::fsdp
