// Random numbers that are the same on all ranks of a tensor-parallel group, and those that differ.
#include "pipewright/tp/rank_generator.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>

#include "pipewright/autograd/checkpoint.h"
#include "pipewright/comms/mesh.h"
#include "pipewright/modules/distribution.h"
#include "pipewright/modules/forward.h"
#include "pipewright/tp/communication.h"
#include "pipewright/tp/parallelize.h"
#include "tests/support/ranks/ground.h"
#include "tests/support/training/modules.h"
#include "tests/support/training/on_ranks.h"

namespace pipewright::tp {
namespace {

namespace nn = torch::nn;
using autograd::GeneratorScope;
using comms::Mesh;
using tests::on_ranks;
using tests::Rank;

// Equal numbers on all ranks, on the CPU and on this rank's device.
class Seeded {
 public:
  explicit Seeded(uint64_t seed) : scope_(seed) {
    if (tests::here().is_cpu()) return;
    at::Generator generator = at::globalContext().defaultGenerator(tests::here());
    const std::lock_guard lock(generator.mutex());
    generator.set_current_seed(seed);
  }

 private:
  const GeneratorScope scope_;
};

at::Tensor eight_numbers() { return at::randn({8}, tests::here(at::kFloat)); }

// One row per rank.
at::Tensor of_all_ranks(const at::Tensor& mine, const comms::BackendPtr& group) {
  return gather_from(mine.reshape({1, -1}), 0, group->getSize(), group);
}

TEST(RankGenerator, DrawsOtherNumbersOnEachRank) {
  on_ranks(3, [](Rank& self) {
    const Seeded same(5);
    const at::Tensor before = eight_numbers();
    at::Tensor different, again;
    {
      const RankGenerator generator(*self.group, tests::here());
      different = eight_numbers();
    }
    {
      const RankGenerator generator(*self.group, tests::here());
      again = eight_numbers();
    }
    const at::Tensor after = eight_numbers();
    for (const at::Tensor& tensor : {before, after}) {
      const at::Tensor all = of_all_ranks(tensor, self.group);
      EXPECT_TRUE(at::equal(all, all[0].expand_as(all)));
    }
    const at::Tensor all = of_all_ranks(at::cat({different, again}), self.group).view({6, 8});
    for (int64_t i = 0; i < 6; ++i) {
      for (int64_t j = 0; j < i; ++j) EXPECT_FALSE(at::allclose(all[i], all[j])) << i << j;
    }
  });
}

// Dropout of copies, and, if `split_dropout`, of this rank's features.
struct Mlp : nn::Module {
  at::Tensor forward(const at::Tensor& x) {
    at::Tensor h = at::gelu(modules::forward(up, x));
    if (split_dropout) {
      const RankGenerator different(*split_dropout, h.device());
      h = at::dropout(h, 0.5, true);
      mask = h.detach().ne(0);
    }
    return x + at::dropout(modules::forward(down, h), 0.5, true);
  }
  nn::Linear up = register_module("up", nn::Linear(8, 16));
  nn::Linear down = register_module("down", nn::Linear(16, 8));
  comms::BackendPtr split_dropout = nullptr;
  at::Tensor mask;
};

// Weights from one seed on every rank.
std::shared_ptr<Mlp> make_mlp() {
  const GeneratorScope generator(3);
  const auto mlp = std::make_shared<Mlp>();
  mlp->to(tests::here(), at::kDouble);
  return mlp;
}

const Plan kPlan = {{"up", colwise_parallel()}, {"down", rowwise_parallel()}};

at::Tensor run(const std::shared_ptr<Mlp>& mlp, const at::Tensor& input, bool checkpointed) {
  const auto forward = [mlp](const std::vector<at::Tensor>& in) {
    return std::vector{modules::forward(mlp, in[0])};
  };
  const at::Tensor loss =
      (checkpointed ? autograd::checkpoint(forward, {input})[0] : forward({input})[0]).pow(2).sum();
  loss.backward();
  return loss.detach();
}

// The same weights from the start, and the same dropout of copies as one process has, also when
// checkpointing repeats it.
TEST(RankGenerator, CopiesAreDroppedAsInOneProcess) {
  for (const bool checkpointed : {false, true}) {
    on_ranks(2, [&](Rank& self) {
      Mesh mesh(*self.world, {{"tp", 2}});
      const auto plain = make_mlp(), module = make_mlp();
      const auto tp = parallelize(*module, kPlan, mesh, "tp");
      const at::Tensor input = tests::random_input({4, 8}, 1);
      at::Tensor expected, got;
      {
        const Seeded generator(11);
        for (int step = 0; step < 2; ++step) expected = run(plain, input, false);
      }
      {
        const Seeded generator(11);
        for (int step = 0; step < 2; ++step) got = run(module, input, checkpointed);
      }
      EXPECT_TRUE(at::allclose(expected, got));
      const auto parameters = module->named_parameters();
      for (const auto& named : plain->named_parameters()) {
        const at::Tensor& parameter = parameters[named.key()];
        EXPECT_TRUE(at::equal(modules::full_tensor(parameter), named.value())) << named.key();
        EXPECT_TRUE(
            at::allclose(modules::full_tensor(parameter, parameter.grad()), named.value().grad()))
            << named.key();
      }
    });
  }
}

// Features that are split are dropped independently, and checkpointing repeats the same masks.
TEST(RankGenerator, SplitFeaturesAreDroppedIndependently) {
  on_ranks(2, [](Rank& self) {
    Mesh mesh(*self.world, {{"tp", 2}});
    const at::Tensor input = tests::random_input({4, 8}, 1);
    std::vector<at::Tensor> grads;
    for (const bool checkpointed : {false, true}) {
      const auto module = make_mlp();
      const auto tp = parallelize(*module, kPlan, mesh, "tp");
      module->split_dropout = mesh.group({"tp"});
      const Seeded generator(11);
      run(module, input, checkpointed);
      const at::Tensor masks = of_all_ranks(module->mask, self.group);
      EXPECT_FALSE(at::equal(masks[0], masks[1]));
      grads.push_back(module->up->weight.grad());
    }
    EXPECT_TRUE(at::equal(grads[0], grads[1]));
  });
}

// With style sequence_parallel, ranks drop different positions, and go on with equal numbers.
TEST(RankGenerator, SequencesAreDroppedIndependently) {
  on_ranks(2, [&](Rank& self) {
    Mesh mesh(*self.world, {{"tp", 2}});
    const auto module = make_mlp();  // whose parameters tell the device
    const auto dropout = module->register_module("dropout", nn::Dropout(0.5));
    const auto split = parallelize(*module, {{"dropout", sequence_parallel()}}, mesh, "tp");
    const at::Tensor ones = at::ones({2, 100}, tests::here(at::kFloat));
    const Seeded generator(17);
    const at::Tensor dropped = modules::forward(dropout, ones);
    const at::Tensor after = at::dropout(ones, 0.5, true);
    EXPECT_NEAR(dropped.mean().item<double>(), 1, 0.3);
    const at::Tensor all = of_all_ranks(dropped, self.group);
    EXPECT_FALSE(at::equal(all[0], all[1]));
    const at::Tensor same = of_all_ranks(after, self.group);
    EXPECT_TRUE(at::equal(same[0], same[1]));
  });
}

}  // namespace
}  // namespace pipewright::tp
