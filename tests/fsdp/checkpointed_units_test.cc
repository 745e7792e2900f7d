// Units that are checkpointed, or parts of them, in one call or several, compared with plain
// copies.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "pipewright/autograd/checkpoint.h"
#include "pipewright/fsdp/fully_shard.h"
#include "tests/fsdp/branch.h"
#include "tests/fsdp/sharding.h"
#include "tests/support/training/modules.h"
#include "tests/support/training/on_ranks.h"
#include "tests/support/training/parity.h"

namespace pipewright::fsdp {
namespace {

using tests::Branch;
using tests::data_seed;
using tests::difference;
using tests::kReduce;
using tests::Loss;
using tests::mlps;
using tests::ModulePtr;
using tests::on_ranks;
using tests::Parity;
using tests::random_input;
using tests::Rank;
using tests::Sharding;
using tests::shards_of;

// A layer that is called in two separately checkpointed parts receives its gradients in two
// portions.
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
          return autograd::checkpoint(part, autograd::checkpoint(part, in));
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
        tests::average_grads(*plain, *self.by_hand);
        EXPECT_EQ(difference(*plain, *module, shards_of(self)), "") << driven << iteration;
      }
    });
  }
}

// A unit's gradients arrive in two portions, of which the first one lacks a parameter on one rank:
// all ranks post the same reductions. The portions are two checkpointed calls, or a checkpointed
// and a plain one, or two checkpointed parts inside one call.
TEST(FullyShard, APortionThatLacksAParameterOnOneRank) {
  enum class Portions { kTwoCalls, kPlainCall, kInsideACall };
  struct Model : tests::TestModule {
    Model()
        : other(register_module("other", std::make_shared<Branch>(8))),
          branch(register_module("branch", std::make_shared<Branch>(7))) {}
    at::Tensor forward(const at::Tensor& input) override {
      const auto inside = [this](bool both) {
        return [this, both](const std::vector<at::Tensor>& in) {
          branch->both = both;
          branch->used = both ? 0 : 1;
          return std::vector{at::tanh(branch->forward(in[0]))};
        };
      };
      const auto part = [&](bool both) {
        return [this, run = inside(both)](const std::vector<at::Tensor>& in) {
          return call(*branch, run, in);
        };
      };
      // Backward runs the second portion first.
      const std::vector<at::Tensor> x = {modules::forward(other, input)};
      switch (portions) {
        case Portions::kTwoCalls:
          return autograd::checkpoint(part(uses_all), autograd::checkpoint(part(true), x))[0];
        case Portions::kPlainCall:
          return part(uses_all)(autograd::checkpoint(part(true), x))[0];
        case Portions::kInsideACall:
          break;
      }
      const auto both_parts = [&](const std::vector<at::Tensor>& in) {
        return autograd::checkpoint(inside(uses_all), autograd::checkpoint(inside(true), in));
      };
      return call(*branch, both_parts, x)[0];
    }
    Portions portions = Portions::kTwoCalls;
    bool uses_all = true;
    std::shared_ptr<Branch> other, branch;  // so `branch` is reduced first
  };
  for (const bool driven : {false, true}) {
    for (const Portions portions :
         {Portions::kTwoCalls, Portions::kPlainCall, Portions::kInsideACall}) {
      on_ranks(2, [&](Rank& self) {
        const auto plain = std::make_shared<Model>(), module = std::make_shared<Model>();
        for (const auto& each : {plain, module}) {
          each->portions = portions;
          each->uses_all = self.rank == 0;
          each->branch->weights[2].set_requires_grad(false);
          each->other->both = true;
          each->other->weights[2].set_requires_grad(false);
        }
        Sharding sharding(self, *module, {{"other"}, {"branch"}}, {.reshard_after_forward = true});
        const auto stage = driven ? sharding.root().data_parallel() : nullptr;
        for (int iteration = 0; iteration < 2; ++iteration) {
          plain->zero_grad();
          module->zero_grad();
          const at::Tensor input = random_input({2, 3}, data_seed(iteration, self.rank));
          forward(plain, input.clone().requires_grad_()).sum().backward();
          if (stage) {
            stage->unshard();
            stage->wait_unshard();
            stage->before_backward(0, /*last=*/true);
          }
          forward(module, input.clone().requires_grad_()).sum().backward();
          if (stage) {
            stage->reduce_grad();
            stage->wait_reduce();
            stage->reshard();
          }
          tests::average_grads(*plain, *self.by_hand);
          EXPECT_EQ(difference(*plain, *module, shards_of(self)), "")
              << driven << static_cast<int>(portions) << iteration;
        }
      });
    }
  }
}

// A module that calls a checkpointed part of its own unit between its layers: the part's backward
// ends inside that of the module. Two forwards, an evaluation, then one backward.
TEST(FullyShard, APartOfTheSameUnitInACheckpoint) {
  struct Outer : tests::TestModule {
    Outer()
        : before(register_module("before", tests::make_mlp(4, 2, 1))),
          inner(register_module("inner", tests::make_mlp(4, 2, 2))),
          after(register_module("after", tests::make_mlp(4, 2, 3))) {}
    at::Tensor forward(const at::Tensor& x) override {
      const auto part = [this](const std::vector<at::Tensor>& in) {
        return std::vector{modules::forward(inner, in[0])};
      };
      return after->forward(autograd::checkpoint(part, {before->forward(x)})[0]);
    }
    ModulePtr before, inner, after;
  };
  struct Model : tests::TestModule {
    Model()
        : first(register_module("first", tests::make_mlp(4, 2, 4))),
          outer(register_module("outer", std::make_shared<Outer>())) {}
    at::Tensor forward(const at::Tensor& x) override {
      return modules::forward(outer, first->forward(x));
    }
    ModulePtr first;
    std::shared_ptr<Outer> outer;
  };
  for (const BackwardPrefetch prefetch : {BackwardPrefetch::kPre, BackwardPrefetch::kPost}) {
    for (const bool reshard_after_backward : {true, false}) {
      on_ranks(2, [&](Rank& self) {
        const auto plain = std::make_shared<Model>(), module = std::make_shared<Model>();
        Parity parity(self, plain, module, shards_of(self));
        Sharding sharding(self, *module, {{"outer", "outer.inner"}},
                          {.reshard_after_forward = true, .backward_prefetch = prefetch});
        sharding.root().set_reshard_after_backward(reshard_after_backward);
        const Loss twice = [](const ModulePtr& each, int iteration, int rank) {
          const auto loss = [&](int seed) {
            return forward(each, random_input({2, 4}, data_seed(seed, rank)).requires_grad_())
                .square()
                .sum();
          };
          const at::Tensor sum = loss(iteration) + loss(iteration + 1);
          const c10::NoGradGuard no_grad;
          forward(each, random_input({2, 4}, 1));
          return sum;
        };
        for (int iteration = 0; iteration < 3; ++iteration) {
          parity.zero_grad(iteration);
          parity.backward(twice, iteration);
          sharding.root().reshard();
          sharding.units[0]->reshard();
          parity.step();
        }
      });
    }
  }
}

// Checkpointed in two forwards before one backward; one rank uses the parameters in only one of
// them: all ranks post the same number of reductions.
TEST(FullyShard, UsedInOneOfTwoCheckpointedForwards) {
  struct Model : tests::TestModule {
    Model() : branch(register_module("branch", std::make_shared<Branch>(7))) {}
    at::Tensor forward(const at::Tensor& input) override {
      const auto use = [this](const std::vector<at::Tensor>& in) {
        const bool is_used = in[0][0][0].item<double>() > 0;
        return std::vector{is_used ? branch->forward(in[0]) : in[0] * 2};
      };
      const auto part = [this, use](const std::vector<at::Tensor>& in) {
        return call(*branch, use, in);
      };
      return autograd::checkpoint(part, {input})[0];
    }
    std::shared_ptr<Branch> branch;
  };
  for (const double first : {-1, 1}) {
    on_ranks(2, [first](Rank& self) {
      const auto plain = std::make_shared<Model>(), module = std::make_shared<Model>();
      Parity parity(self, plain, module, shards_of(self));
      Sharding sharding(self, *module, {{"branch"}}, {.reshard_after_forward = true});
      const Loss twice = [first](const ModulePtr& each, int iteration, int rank) {
        at::Tensor sum = at::zeros({}, at::kDouble);
        for (const double sign : {first, -first}) {
          const at::Tensor x = random_input({2, 3}, data_seed(iteration, rank));
          x[0][0] = rank == 0 ? 1 : sign;
          sum = sum + forward(each, x.requires_grad_()).sum();
        }
        return sum;
      };
      for (int iteration = 0; iteration < 2; ++iteration) {
        self.log->clear();
        parity.zero_grad(0);
        parity.backward(twice, iteration);
        EXPECT_EQ(self.log->count(kReduce), 2);
        parity.step();
      }
    });
  }
}

}  // namespace
}  // namespace pipewright::fsdp
