// The cases of PyTorch's test_replicate_training.py, under their names, on ranks as threads; some
// also run over Gloo (gloo_test). Every comparison takes an optimizer step first, then compares
// gradients and parameters with those of a plain copy whose gradients are averaged by hand.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "pipewright/ddp/replicate.h"
#include "pipewright/modules/forward.h"
#include "tests/ddp/wrap.h"
#include "tests/support/ranks/ground.h"
#include "tests/support/training/modules.h"
#include "tests/support/training/on_ranks.h"
#include "tests/support/training/parity.h"

namespace pipewright::ddp {
namespace {

using tests::Checkpointed;
using tests::data_seed;
using tests::Late;
using tests::Loss;
using tests::ModulePtr;
using tests::on_ranks;
using tests::Parity;
using tests::random_input;
using tests::Rank;
using tests::sum_of;
using tests::sum_of_tokens;
using tests::TransformerArgs;
using tests::wrap;

// Trains for ten iterations and compares with a plain copy.
void expect_parity(Rank& self, const ModulePtr& plain, const ModulePtr& module, const Loss& loss) {
  Parity parity(self, plain, module);
  const auto units = wrap(*module, self.group);
  parity.train(loss);
}

using Shapes = std::vector<std::pair<int64_t, int64_t>>;
const Shapes kShapes[] = {{{16, 15}, {15, 8}}, {{7, 15}, {15, 3}}, {{16, 17}, {17, 8}}};

struct NoInputs : torch::nn::Module {
  at::Tensor weight = register_parameter("weight", at::ones({4, 4}, tests::here(at::kDouble)));
};

TEST(ReplicateTraining, test_root_no_forward_inputs) {
  on_ranks(2, [](Rank& self) {
    NoInputs module;
    const auto unit = replicate(module, self.group);
    (module.weight * (self.rank + 1)).sum().backward();
    EXPECT_TRUE(at::equal(module.weight.grad(), at::full({4, 4}, 1.5, tests::here(at::kDouble))));
    torch::nn::Module nothing;
    const auto empty = replicate(nothing, self.group);
    EXPECT_TRUE(empty->buckets().empty());
  });
}

TEST(ReplicateTraining, test_root_move_forward_input_to_device) {
  on_ranks(2, [](Rank& self) {
    torch::nn::Module without_parameters;
    const auto unit = replicate(without_parameters, self.group, {.device = at::kMeta});
    const at::Tensor x = at::ones({2}, tests::here()), y0 = at::ones({3}), y1;
    const auto same = [](const modules::Tensors& inputs) { return inputs; };
    const std::vector<at::Tensor> moved = modules::call(without_parameters, same, {x, y0, y1});
    EXPECT_TRUE(moved[0].is_meta() && moved[1].is_meta());
    EXPECT_EQ(moved[1].sizes(), at::IntArrayRef({3}));
    EXPECT_FALSE(moved[2].defined());
    const ModulePtr mlp = tests::make_mlp(2, 2, 42);
    const auto of_mlp = replicate(*mlp, self.group);
    EXPECT_TRUE(modules::call(*mlp, same, {x})[0].is_same(x));
  });
}

// PyTorch registers other tensors while a module is sharded, computes, or is sharded again. Ours
// are the same tensors throughout, under the same names, and with the same values.
class Registration : public testing::TestWithParam<std::tuple<bool, bool>> {};

TEST_P(Registration, test_param_registration) {
  const auto [with_backward, in_groups] = GetParam();
  on_ranks(4, [&, with_backward = with_backward, in_groups = in_groups](Rank& self) {
    const ModulePtr module = tests::make_mlps(8, 2, 42);
    std::vector<std::string> names;
    std::vector<at::Tensor> before, values;
    for (const auto& named : module->named_parameters()) {
      names.push_back(named.key());
      before.push_back(named.value());
      values.push_back(named.value().detach().clone());
    }
    const auto expect_same = [&](bool have_grads) {
      const auto now = module->named_parameters();
      ASSERT_EQ(now.size(), names.size());
      for (size_t i = 0; i < names.size(); ++i) {
        EXPECT_EQ(now[i].key(), names[i]);
        EXPECT_TRUE(now[i].value().is_same(before[i]));
        EXPECT_TRUE(at::equal(now[i].value(), values[i]));
        EXPECT_EQ(now[i].value().grad().defined(), have_grads);
      }
    };
    const auto units =
        in_groups ? wrap(*module, self.group) : std::vector{replicate(*module, self.group)};
    expect_same(false);
    const at::Tensor output =
        modules::forward(module, random_input({2, 8}, data_seed(0, self.rank)));
    expect_same(false);
    if (with_backward) output.sum().backward();
    expect_same(with_backward);
    for (const auto& unit : units) unit->reshard();
    expect_same(with_backward);
  });
}

INSTANTIATE_TEST_SUITE_P(AfterForwardAndAfterBackward, Registration,
                         testing::Combine(testing::Bool(), testing::Bool()));

TEST(ReplicateTraining, test_train_parity_single_group) {
  for (const Shapes& shapes : kShapes) {
    for (const int ranks : {2, 4, 8}) {
      on_ranks(ranks, [&](Rank& self) {
        expect_parity(self, tests::make_two_linears(shapes, 42),
                      // Weights differ between ranks: all receive rank 0's.
                      tests::make_two_linears(shapes, 42 + static_cast<uint64_t>(self.rank)),
                      sum_of({4, shapes[0].first}));
      });
    }
  }
}

// The transformer of PyTorch's larger rows, and its data.
const TransformerArgs kThreeLayers{.layers = 3, .vocabulary = 1024, .tokens = 64};
const Loss kThreeSequences = sum_of_tokens({3, 64}, 1024);
// The same, smaller: for tests that train many models.
const TransformerArgs kThreeSmallLayers{.layers = 3, .vocabulary = 32, .tokens = 16};
const Loss kThreeShortSequences = sum_of_tokens({3, 16}, 32);

class MultiGroup : public testing::TestWithParam<Late> {};

// Ranks are delayed: a missing wait would let a rank compute with data that has not arrived yet.
TEST_P(MultiGroup, test_train_parity_multi_group) {
  tests::on_late_ranks(4, GetParam(), [](Rank& self) {
    expect_parity(self, tests::make_transformer(kThreeLayers, 42),
                  tests::make_transformer(kThreeLayers, 42), kThreeSequences);
  });
}

INSTANTIATE_TEST_SUITE_P(LateRanks, MultiGroup,
                         testing::Values(Late::kNowhere, Late::kAfterForward, Late::kBeforeGather,
                                         Late::kBeforeReduction, Late::kBeforeStep,
                                         Late::kEverywhere),
                         [](const auto& of) { return to_string(of.param); });

TEST(ReplicateTraining, test_non_root_forward_backward) {
  tests::on_late_ranks(4, Late::kBeforeStep, [](Rank& self) {
    const ModulePtr module = tests::make_mlps(32, 3, 42);
    Parity parity(self, tests::make_mlps(32, 3, 42), module);
    const auto units = wrap(*module, self.group);
    tests::train_whole_and_part(parity);
  });
}

TEST(ReplicateTraining, test_multi_forward_module) {
  for (const bool chained : {false, true}) {
    on_ranks(2, [chained](Rank& self) {
      expect_parity(self, tests::make_repeated(42, chained), tests::make_repeated(42, chained),
                    sum_of({32, 4}));
    });
  }
}

TEST(ReplicateTraining, test_explicit_prefetching) {
  on_ranks(4, [](Rank& self) {
    const TransformerArgs args{.layers = 8};
    const ModulePtr module = tests::make_transformer(args, 42);
    Parity parity(self, tests::make_transformer(args, 42), module, nullptr, tests::adam_w);
    const auto units = wrap(*module, self.group);
    parity.train(sum_of_tokens({2, 8}, 8));
  });
}

// No host waits for the device before the end.
TEST(ReplicateTraining, test_post_optim_event) {
  on_ranks(4, [](Rank& self) {
    const ModulePtr plain = tests::make_transformer({}, 42),
                    module = tests::make_transformer({}, 42);
    const auto units = wrap(*module, self.group);
    const auto plain_optimizer = tests::adam_w(*plain), optimizer = tests::adam_w(*module);
    const Loss loss_of = sum_of_tokens({2, 8}, 8);
    std::vector<at::Tensor> expected, losses;
    for (int iteration = 0; iteration < 10; ++iteration) {
      plain_optimizer->zero_grad();
      optimizer->zero_grad();
      expected.push_back(loss_of(plain, iteration, self.rank));
      losses.push_back(loss_of(module, iteration, self.rank));
      expected.back().backward();
      losses.back().backward();
      tests::average_grads(*plain, *self.by_hand);
      plain_optimizer->step();
      optimizer->step();
    }
    for (size_t i = 0; i < losses.size(); ++i)
      EXPECT_TRUE(at::allclose(losses[i], expected[i], 1e-9, 1e-11)) << i;
    EXPECT_EQ(tests::difference(*plain, *module), "");
  });
}

// The same data in all iterations. Processes have separate random generators, so there dropout is
// on.
TEST(ReplicateTraining, test_train_parity_with_activation_checkpointing) {
  using Groups = std::vector<std::vector<std::string>>;
  const Groups by_block = {{"block0"}, {"block1"}, {"block2"}};
  const Groups mem_eff = {
      {"block0"}, {"block1", "block2"}, {"tokens", "positions"}, {"norm", "output"}};
  const Groups mem_eff_weight_tied = {{"tokens", "output"}, {"block0"}, {"block1"}, {"block2"}};
  const Loss loss = [](const ModulePtr& module, int iteration, int rank) {
    at::manual_seed(static_cast<uint64_t>(iteration));
    return kThreeShortSequences(module, 0, rank);
  };
  for (const auto& [groups, tied] :
       {std::pair{Groups{}, false}, std::pair{Groups{}, true}, std::pair{by_block, false},
        std::pair{by_block, true}, std::pair{mem_eff, false},
        std::pair{mem_eff_weight_tied, true}}) {
    for (const Checkpointed where :
         {Checkpointed::kAround, Checkpointed::kInside, Checkpointed::kWrapper}) {
      on_ranks(2, [&, groups = groups, tied = tied](Rank& self) {
        TransformerArgs plain = kThreeSmallLayers;
        plain.tied = tied;
        plain.dropout = tests::ranks_are_processes() ? 0.1 : 0;
        TransformerArgs args = plain;
        args.checkpointed = where;
        const ModulePtr module = tests::make_transformer(args, 42);
        Parity parity(self, tests::make_transformer(plain, 42), module);
        std::vector<std::shared_ptr<Replicated>> units;
        for (const std::vector<std::string>& paths : groups)
          units.push_back(replicate(tests::modules_at(*module, paths), self.group));
        units.push_back(replicate(*module, self.group));
        parity.train(loss);
      });
    }
  }
}

TEST(ReplicateTraining, test_train_parity_with_shared_params) {
  for (const Checkpointed checkpointed : {Checkpointed::kNot, Checkpointed::kAround}) {
    on_ranks(4, [&](Rank& self) {
      expect_parity(self, tests::make_transformer({.layers = 3}, 42),
                    tests::make_transformer({.layers = 3, .checkpointed = checkpointed}, 42),
                    sum_of_tokens({2, 16}, 8));
    });
  }
}

enum class Mode { kAll, kSomeMlps, kRootOnly };

// The counts of PyTorch's table: one all-reduce per replicate() call.
TEST(ReplicateTraining, test_gradient_accumulation) {
  constexpr int kMlps = 3, kMicrobatches = 3;
  for (const auto& [mode, count] :
       {std::pair{Mode::kAll, 4}, std::pair{Mode::kSomeMlps, 8}, std::pair{Mode::kRootOnly, 10}}) {
    on_ranks(2, [&, mode = mode, count = count](Rank& self) {
      const ModulePtr module = tests::make_mlps(32, kMlps, 42);
      Parity parity(self, tests::make_mlps(32, kMlps, 42), module);
      const auto units = wrap(*module, self.group);
      Replicated& root = *units.back();
      for (int iteration = 0; iteration < 5; ++iteration) {
        parity.zero_grad(iteration);
        self.log->clear();
        for (int microbatch = 0; microbatch < kMicrobatches; ++microbatch) {
          const bool last = microbatch == kMicrobatches - 1;
          if (mode == Mode::kAll) root.set_requires_gradient_sync(last);
          if (mode == Mode::kRootOnly) root.set_requires_gradient_sync(last, /*recurse=*/false);
          if (mode == Mode::kSomeMlps) {
            units[0]->set_requires_gradient_sync(last);
            units[1]->set_requires_gradient_sync(last);
          }
          parity.backward(sum_of({2, 32}), 10 * iteration + microbatch);
        }
        parity.step();
        // In the first iteration, rank 0 broadcasts its bucket order.
        EXPECT_EQ(self.log->count("allreduce"), count);
        EXPECT_EQ(self.log->count("_allgather_base"), 0);
        EXPECT_EQ(self.log->count("_reduce_scatter_base"), 0);
        EXPECT_EQ(self.log->calls().size(),
                  static_cast<size_t>(count + (iteration == 0 ? kMlps + 1 : 0)));
      }
    });
  }
}

TEST(ReplicateTraining, test_1f1b_microbatching) {
  for (const bool unshards_first : {false, true}) {
    on_ranks(4, [&](Rank& self) {
      const ModulePtr module = tests::make_transformer({}, 42);
      Parity parity(self, tests::make_transformer({}, 42), module, nullptr, tests::adam_w);
      const auto units = wrap(*module, self.group);
      if (unshards_first) {
        for (const auto& unit : units) unit->unshard();
      }
      for (int microbatch = 0; microbatch < 3; ++microbatch) {
        const bool last = microbatch == 2;
        units.back()->set_requires_gradient_sync(last);
        parity.backward(sum_of_tokens({2, 16}, 8), microbatch);
      }
      parity.step();
    });
  }
}

// Any function may call a module, not only its forward: replicate has no forward hooks to miss.
TEST(ReplicateTraining, test_register_fsdp_forward_method) {
  on_ranks(2, [](Rank& self) {
    expect_parity(self, tests::make_vit(42), tests::make_vit(42), sum_of({4, 3, 224, 224}));
  });
}

TEST(ReplicateTraining, test_train_parity_single_worldsize1) {
  for (const Shapes& shapes : kShapes) {
    on_ranks(1, [&](Rank& self) {
      expect_parity(self, tests::make_two_linears(shapes, 42), tests::make_two_linears(shapes, 42),
                    sum_of({4, shapes[0].first}));
      EXPECT_TRUE(self.log->calls().empty());
    });
  }
  on_ranks(1, [](Rank& self) {
    const ModulePtr module = tests::make_mlps(4, 2, 42);
    const auto units = wrap(*module, self.group, {.find_unused_parameters = true});
    const auto stage = units.back()->data_parallel();
    stage->before_backward(0, /*last=*/true);
    module->forward(random_input({2, 4}, 1)).sum().backward();
    stage->reduce_grad();
    stage->wait_reduce();
    EXPECT_TRUE(self.log->calls().empty());
    EXPECT_EQ(units.back()->bucket_bytes(), 0u);  // gradients stay where autograd puts them
  });
}

}  // namespace
}  // namespace pipewright::ddp
