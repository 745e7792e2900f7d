// fully_shard as PyTorch's tests demand it (test_fully_shard_training.py), by their names, on ranks
// as threads, and some of them over Gloo (gloo_test). Every comparison steps first, and compares
// gradients and parameters with those of a plain copy whose gradients are averaged by hand.
#include "fsdp/fully_shard.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>

#include <algorithm>

#include "executor/checkpoint.h"
#include "tests/fsdp/parity.h"
#include "tests/training/modules.h"
#include "tests/training/on_ranks.h"

namespace pipewright::fsdp {
namespace {

using tests::adam;
using tests::blocks;
using tests::data_seed;
using tests::expect_equal_step;
using tests::Groups;
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

using Loss = std::function<at::Tensor(const ModulePtr&, int iteration, int rank)>;

// Ten iterations beside a plain copy.
void expect_parity(Rank& self, const ModulePtr& plain, const ModulePtr& module, const Loss& loss,
                   const Groups& groups, const Options& options = {},
                   const std::function<void(Sharding&, int iteration)>& each = nullptr) {
  // Made before: it knows the shards all the same.
  auto plain_optimizer = adam(*plain), optimizer = adam(*module);
  Sharding wrapped(self, *module, groups, options);
  EXPECT_EQ(shard_difference(*plain, *module, self, options.shard_placement_fn), "") << "at first";
  for (int iteration = 0; iteration < 10; ++iteration) {
    const bool to_none = iteration % 2 == 0;
    plain_optimizer.zero_grad(to_none);
    optimizer.zero_grad(to_none);
    if (each) each(wrapped, iteration);
    const at::Tensor want = loss(plain, iteration, self.rank);
    const at::Tensor got = loss(module, iteration, self.rank);
    EXPECT_TRUE(at::allclose(want, got, 1e-9, 1e-11)) << iteration;
    want.backward();
    got.backward();
    expect_equal_step(self, *plain, plain_optimizer, *module, optimizer,
                      options.shard_placement_fn);
  }
}

int64_t largest_dim(const at::Tensor& parameter) {
  const at::IntArrayRef sizes = parameter.sizes();
  return std::max_element(sizes.begin(), sizes.end()) - sizes.begin();
}

Loss sum_of(std::vector<int64_t> sizes) {
  return [sizes](const ModulePtr& module, int iteration, int rank) {
    return forward(module, random_input(sizes, data_seed(iteration, rank))).sum();
  };
}

Loss tokens_loss(std::vector<int64_t> sizes = {3, 16}) {
  return [sizes](const ModulePtr& module, int iteration, int rank) {
    return forward(module, random_tokens(sizes, 64, data_seed(iteration, rank))).sum();
  };
}

using Shapes = std::vector<std::pair<int64_t, int64_t>>;

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
      at::Tensor weight = register_parameter("weight", at::ones({4, 4}, at::kDouble));
      int factor = 1;
      at::Tensor forward() { return weight * factor; }
    };
    const auto module = std::make_shared<NoInputs>();
    module->factor = self.rank + 1;
    const auto unit = fully_shard(*module, self.group);
    forward(module).sum().backward();
    EXPECT_TRUE(at::equal(module->weight.grad(), at::full({2, 4}, 1.5, at::kDouble)));
  });
}

// What the registered parameters are at each time; together they are always the plain copy's.

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
        // The root alone: by default it is kept.
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
  for (const Shapes& shapes :
       {Shapes{{16, 15}, {15, 8}}, Shapes{{7, 15}, {15, 3}}, Shapes{{16, 17}, {17, 8}}}) {
    for (const int ranks : {2, 4, 8}) {
      on_ranks(ranks, [&](Rank& self) {
        expect_parity(self, tests::make_two_linears(shapes, 42),
                      // Other weights on other ranks: rank 0's are given to all.
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

class MultiGroup : public testing::TestWithParam<std::tuple<int, bool>> {};

const ReshardAfterForward kReshardOptions[] = {true, false, 2};

// With delays before and behind every call, by chance.
TEST_P(MultiGroup, test_train_parity_multi_group) {
  const auto [option, delayed] = GetParam();
  on_ranks(4, [option = option, delayed = delayed](Rank& self) {
    const auto gathers = tests::random_delays(kGather), reductions = tests::random_delays(kReduce);
    Sharding::injector = [=](const comms::CallRecord& call) {
      if (!delayed) return comms::Fault{};
      return call.op == kGather ? gathers(call) : reductions(call);
    };
    const tests::TransformerArgs args{.layers = 3, .tied = false};
    expect_parity(self, tests::make_transformer(args, 42), tests::make_transformer(args, 42),
                  tokens_loss(), blocks(3), {.reshard_after_forward = kReshardOptions[option]});
    Sharding::injector = nullptr;
  });
}

INSTANTIATE_TEST_SUITE_P(ReshardAndDelays, MultiGroup,
                         testing::Combine(testing::Range(0, 3), testing::Bool()));

TEST(FullyShardTraining, test_train_parity_multi_group_unshard_async_op) {
  on_ranks(4, [](Rank& self) {
    const tests::TransformerArgs args{.layers = 3, .tied = false};
    expect_parity(self, tests::make_transformer(args, 42), tests::make_transformer(args, 42),
                  tokens_loss(), blocks(3), {.reshard_after_forward = true},
                  [](Sharding& wrapped, int) {
                    for (const auto& unit : wrapped.units) unit->unshard_async();
                  });
  });
}

TEST(FullyShardTraining, test_non_root_forward_backward) {
  on_ranks(4, [](Rank& self) {
    const ModulePtr plain = tests::make_mlps(32, 3, 42), module = tests::make_mlps(32, 3, 42);
    Sharding wrapped(self, *module, mlps(3), {});
    auto plain_optimizer = adam(*plain), optimizer = adam(*module);
    const auto part = [](const ModulePtr& of) {
      return std::dynamic_pointer_cast<tests::TestModule>(of->parts()[0]);
    };
    for (int iteration = 0; iteration < 10; ++iteration) {
      const at::Tensor input = random_input({4, 32}, data_seed(iteration, self.rank));
      for (const bool whole : {true, false}) {
        plain_optimizer.zero_grad();
        optimizer.zero_grad();
        const at::Tensor want = forward(whole ? plain : part(plain), input).sum();
        const at::Tensor got = forward(whole ? module : part(module), input).sum();
        EXPECT_TRUE(at::allclose(want, got, 1e-9, 1e-11));
        want.backward();
        got.backward();
        expect_equal_step(self, *plain, plain_optimizer, *module, optimizer);
      }
    }
  });
}

TEST(FullyShardTraining, test_multi_forward_module) {
  for (const auto& [option, gathers] :
       {std::pair{ReshardAfterForward(true), 5}, std::pair{ReshardAfterForward(false), 2},
        std::pair{ReshardAfterForward(2), 5}}) {
    on_ranks(2, [&, option = option, gathers = gathers](Rank& self) {
      expect_parity(self, tests::make_repeated(42), tests::make_repeated(42), sum_of({32, 4}),
                    {{"inner"}}, {.reshard_after_forward = option},
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

TEST(FullyShardTraining, test_explicit_prefetching) {
  on_ranks(4, [](Rank& self) {
    const tests::TransformerArgs args{.layers = 8, .tied = false};
    expect_parity(self, tests::make_transformer(args, 42), tests::make_transformer(args, 42),
                  tokens_loss({2, 8}), blocks(8), {}, [&](Sharding& wrapped, int iteration) {
                    if (iteration > 0) return;
                    std::vector<std::shared_ptr<Sharded>>& units = wrapped.units;
                    for (size_t i = 0; i < 8; ++i) {
                      std::vector<Sharded*> next, previous;
                      for (size_t j = i + 1; j < std::min<size_t>(i + 3, 8); ++j)
                        next.push_back(units[j].get());
                      for (size_t j = i; j-- > (i < 2 ? 0 : i - 2);)
                        previous.push_back(units[j].get());
                      units[i]->set_modules_to_forward_prefetch(next);
                      units[i]->set_modules_to_backward_prefetch(previous);
                    }
                  });
  });
}

TEST(FullyShardTraining, test_train_parity_with_activation_checkpointing) {
  const Groups mem_eff = {
      {"block0"}, {"block1", "block2"}, {"tokens", "positions"}, {"norm", "output"}};
  const Groups mem_eff_weight_tied = {{"tokens", "output"}, {"block0"}, {"block1"}, {"block2"}};
  struct Case {
    Groups groups;
    bool tied;
  };
  for (const Case& the : {Case{blocks(3), false}, Case{blocks(3), true}, Case{mem_eff, false},
                          Case{mem_eff_weight_tied, true}}) {
    for (const bool reshard_after_forward : {true, false}) {
      // A part that calls the unit, and a unit that calls the part.
      for (const bool inside : {false, true}) {
        on_ranks(2, [&](Rank& self) {
          const tests::TransformerArgs plain{.layers = 3, .tied = the.tied};
          tests::TransformerArgs checkpointed = plain;
          (inside ? checkpointed.checkpointed_inside : checkpointed.checkpointed) = true;
          expect_parity(self, tests::make_transformer(plain, 42),
                        tests::make_transformer(checkpointed, 42), tokens_loss(), the.groups,
                        {.reshard_after_forward = reshard_after_forward},
                        [&](Sharding& sharding, int) {
                          // Backward of embeddings does not need their weights.
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
      const tests::TransformerArgs args{.layers = 3};
      expect_parity(self, tests::make_transformer(args, 42), tests::make_transformer(args, 42),
                    tokens_loss({2, 16}), blocks(3), {.shard_placement_fn = largest_dim});
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
  for (const bool checkpointed : {false, true}) {
    for (const ReshardAfterForward& option :
         {ReshardAfterForward(false), ReshardAfterForward(true)}) {
      on_ranks(4, [&](Rank& self) {
        const tests::TransformerArgs args{.layers = 3, .tied = true, .checkpointed = checkpointed};
        // 17 rows: the last rank has fewer.
        const tests::TransformerArgs uneven{
            .layers = 3, .vocabulary = 17, .tied = true, .checkpointed = checkpointed};
        expect_parity(self, tests::make_transformer(args, 42), tests::make_transformer(args, 42),
                      tokens_loss(), blocks(3), {.reshard_after_forward = option});
        expect_parity(
            self, tests::make_transformer(uneven, 42), tests::make_transformer(uneven, 42),
            [](const ModulePtr& module, int iteration, int rank) {
              return forward(module, random_tokens({3, 16}, 17, data_seed(iteration, rank))).sum();
            },
            blocks(3), {.reshard_after_forward = option});
      });
    }
  }
}

enum class Mode { kAll, kSomeMlps, kRootOnly };

struct Accumulation {
  Mode mode;
  ReshardAfterForward reshard_after_forward;
  bool reshard_after_backward;
  int reductions, gathers;  // -1: not in PyTorch's table
};

// The counts of PyTorch's table.
TEST(FullyShardTraining, test_gradient_accumulation) {
  constexpr int kMlps = 3, kMicrobatches = 3;
  const Accumulation cases[] = {
      {Mode::kAll, true, true, 4, 24},        {Mode::kSomeMlps, true, true, 8, 24},
      {Mode::kRootOnly, true, true, 10, 24},  {Mode::kAll, 2, true, 4, 24},
      {Mode::kSomeMlps, 2, true, 8, 24},      {Mode::kRootOnly, 2, true, 10, 24},
      {Mode::kAll, false, true, 4, 12},       {Mode::kSomeMlps, false, true, 8, 12},
      {Mode::kRootOnly, false, true, 10, 12}, {Mode::kAll, false, false, 4, 4},
      {Mode::kRootOnly, false, false, 10, 10}};
  for (const Accumulation& the : cases) {
    on_ranks(4, [&](Rank& self) {
      const ModulePtr plain = tests::make_mlps(32, kMlps, 42);
      const ModulePtr module = tests::make_mlps(32, kMlps, 42);
      Sharding wrapped(self, *module, mlps(kMlps),
                       {.reshard_after_forward = the.reshard_after_forward});
      auto plain_optimizer = adam(*plain), optimizer = adam(*module);
      for (int iteration = 0; iteration < 5; ++iteration) {
        plain_optimizer.zero_grad(iteration % 2 == 0);
        optimizer.zero_grad(iteration % 2 == 0);
        self.log->clear();
        for (int microbatch = 0; microbatch < kMicrobatches; ++microbatch) {
          const bool last = microbatch == kMicrobatches - 1;
          Sharded& root = wrapped.root();
          root.set_is_last_backward(last);
          const bool recurse = the.mode != Mode::kRootOnly;
          const auto set = [&](Sharded& unit) {
            unit.set_requires_gradient_sync(last, recurse);
            if (!the.reshard_after_backward) unit.set_reshard_after_backward(last, recurse);
          };
          if (the.mode == Mode::kSomeMlps) {
            set(*wrapped.units[0]);
            set(*wrapped.units[1]);
          } else {
            set(root);
          }
          const at::Tensor input =
              random_input({2, 32}, data_seed(10 * iteration + microbatch, self.rank));
          const at::Tensor want = forward(plain, input).sum(), got = forward(module, input).sum();
          EXPECT_TRUE(at::allclose(want, got, 1e-9, 1e-11));
          want.backward();
          got.backward();
        }
        expect_equal_step(self, *plain, plain_optimizer, *module, optimizer);
        EXPECT_EQ(self.log->count(kReduce), the.reductions) << iteration;
        EXPECT_EQ(self.log->count(kGather), the.gathers) << iteration;
        EXPECT_EQ(self.log->count("allreduce"), 0);
      }
    });
  }
}

TEST(FullyShardTraining, test_1f1b_microbatching) {
  for (const bool unshards_first : {false, true}) {
    for (const bool reshards_last : {false, true}) {
      on_ranks(4, [&](Rank& self) {
        const tests::TransformerArgs args{.layers = 2};
        const ModulePtr plain = tests::make_transformer(args, 42);
        const ModulePtr module = tests::make_transformer(args, 42);
        Sharding wrapped(self, *module, blocks(2), {.reshard_after_forward = false});
        auto plain_optimizer = adam(*plain), optimizer = adam(*module);
        if (unshards_first) {
          for (const auto& unit : wrapped.units) unit->unshard_async();
        }
        for (int microbatch = 0; microbatch < 3; ++microbatch) {
          const bool last = microbatch == 2;
          wrapped.root().set_requires_gradient_sync(last);
          wrapped.root().set_is_last_backward(last);
          if (reshards_last) wrapped.root().set_reshard_after_backward(last);
          const at::Tensor want = tokens_loss({2, 16})(plain, microbatch, self.rank);
          const at::Tensor got = tokens_loss({2, 16})(module, microbatch, self.rank);
          EXPECT_TRUE(at::allclose(want, got, 1e-9, 1e-11));
          want.backward();
          got.backward();
        }
        EXPECT_EQ(self.log->count(kGather), reshards_last ? 3 : 9);
        expect_equal_step(self, *plain, plain_optimizer, *module, optimizer);
      });
    }
  }
}

// A method that is not called forward.
TEST(FullyShardTraining, test_register_fsdp_forward_method) {
  struct Vit : torch::nn::Module {
    Vit()
        : patches(register_module(
              "patches", torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 64, 14).stride(14)))) {}
    at::Tensor forward_features(const at::Tensor& images) {
      return patches->forward(images).flatten(2).transpose(1, 2);
    }
    torch::nn::Conv2d patches;
  };
  struct Outer : tests::TestModule {
    Outer()
        : vit(register_module("vit", std::make_shared<Vit>())),
          head(register_module("head", torch::nn::Linear(64, 5))) {}
    at::Tensor forward(const at::Tensor& images) override {
      const auto features = [this](const std::vector<at::Tensor>& in) {
        return std::vector{vit->forward_features(in[0])};
      };
      return head(call(*vit, features, {images})[0]);
    }
    std::shared_ptr<Vit> vit;
    torch::nn::Linear head;
  };
  const auto make = [] {
    const auto module = std::make_shared<Outer>();
    const c10::NoGradGuard no_grad;
    uint64_t seed = 1;
    for (at::Tensor& weight : module->parameters())
      weight.copy_(random_input(weight.sizes(), ++seed) / 20);
    module->to(at::kDouble);
    return module;
  };
  on_ranks(2, [&](Rank& self) {
    expect_parity(self, make(), make(), sum_of({4, 3, 56, 56}), {{"vit"}});
    // Without the call its weights are shards, which do not fit their gradients.
    const auto module = make();
    Sharding wrapped(self, *module, {{"vit"}}, {});
    EXPECT_THROW(module->vit->forward_features(random_input({1, 3, 56, 56}, 1)).sum().backward(),
                 std::exception);
  });
}

TEST(FullyShardTraining, test_train_parity_single_worldsize1) {
  for (const Shapes& shapes : {Shapes{{16, 15}, {15, 8}}, Shapes{{7, 15}, {15, 3}}}) {
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
