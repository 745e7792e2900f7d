// Units that a user unshards, and what gathers and reductions do to the values of tensors whose
// sizes the ranks do not divide: rows of PyTorch's test_fully_shard_comm.py.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>

#include <algorithm>
#include <functional>

#include "pipewright/ddp/replicate.h"
#include "pipewright/fsdp/fully_shard.h"
#include "tests/fsdp/sharding.h"
#include "tests/support/ranks/ground.h"
#include "tests/support/training/modules.h"
#include "tests/support/training/on_ranks.h"
#include "tests/support/training/parity.h"

namespace pipewright::fsdp {
namespace {

using tests::kGather;
using tests::kReduce;
using tests::ModulePtr;
using tests::on_ranks;
using tests::part_of;
using tests::random_input;
using tests::Rank;
using tests::Sharding;

using Names = std::vector<std::string>;

// relu(x @ weight), which its caller sums over the ranks.
struct ReduceModule : torch::nn::Module {
  explicit ReduceModule(uint64_t seed)
      : weight(register_parameter("weight", random_input({8, 8}, seed))) {}
  at::Tensor forward(const at::Tensor& x) { return at::relu(at::mm(x, weight)); }
  at::Tensor weight;
};

struct MlpsOfSums : tests::TestModule {
  MlpsOfSums() {
    for (uint64_t i = 0; i < 3; ++i)
      mlps.push_back(register_module("mlp" + std::to_string(i), tests::make_mlp(8, 4, 7 + i)));
  }
  // [3 * batch, 8]: the inputs of the three.
  at::Tensor forward(const at::Tensor& inputs) override {
    const auto each = inputs.chunk(3);
    at::Tensor sum;
    for (size_t i = 0; i < 3; ++i) {
      if (before) before(i);
      const at::Tensor y = modules::forward(mlps[i], each[i]);
      sum = sum.defined() ? sum + y : y;
    }
    return sum;
  }
  std::vector<ModulePtr> mlps;
  std::function<void(size_t)> before;
};

struct ReduceAndMlps : tests::TestModule {
  explicit ReduceAndMlps(comms::BackendPtr its_group) : group(std::move(its_group)) {
    for (uint64_t i = 0; i < 3; ++i) {
      reduces.push_back(
          register_module("reduce" + std::to_string(i), std::make_shared<ReduceModule>(i)));
    }
    mlps = register_module("mlps", std::make_shared<MlpsOfSums>());
  }
  at::Tensor forward(const at::Tensor& x) override {
    std::vector<at::Tensor> ys, sums;
    std::vector<c10::intrusive_ptr<c10d::Work>> works;
    for (size_t i = 0; i < 3; ++i) {
      ys.push_back(modules::forward(reduces[i], x));
      std::vector<at::Tensor> sum = {ys[i].detach().clone()};
      works.push_back(group->allreduce(sum));
      sums.push_back(sum[0]);
      if (after_reduce) after_reduce(i);
    }
    for (size_t i = 0; i < 3; ++i) {
      works[i]->wait();
      ys[i] = ys[i] + (sums[i] - ys[i].detach());  // gradients pass as if nothing were summed
    }
    return modules::forward(mlps, at::cat(ys));
  }
  comms::BackendPtr group;
  std::vector<std::shared_ptr<ReduceModule>> reduces;
  std::shared_ptr<MlpsOfSums> mlps;
  std::function<void(size_t)> after_reduce;
};

// The gather of each MLP is posted right after an all-reduce of the user's own, over another group,
// and both are pending until the MLP runs. The MLPs are units, and the rest is replicated.
TEST(FullyShardUnshard, test_unshard_async) {
  for (const bool by_the_user : {true, false}) {
    on_ranks(2, [&](Rank& self) {
      const auto own = self.world->make_group("own", std::vector{0, 1});
      const auto plain = std::make_shared<ReduceAndMlps>(own);
      const auto module = std::make_shared<ReduceAndMlps>(comms::record(own, self.log));
      for (const auto& each : {plain, module}) each->to(tests::here());
      const tests::Part part = [&](const at::Tensor& whole) {
        // The weights of the replicated modules are the only ones of this shape.
        return whole.sizes() == at::IntArrayRef{8, 8} ? whole : part_of(whole, self.rank, 2);
      };
      tests::Parity parity(self, plain, module, part);
      Sharding sharding(self, *module->mlps, {{"mlp0"}, {"mlp1"}, {"mlp2"}},
                        {.reshard_after_forward = false});
      const auto log = sharding.record_events();
      EXPECT_TRUE(sharding.root().parameter_names().empty());
      const auto replicated =
          ddp::replicate(*module, self.group, {.ignored_params = module->mlps->parameters()});
      if (by_the_user) {
        module->after_reduce = [&](size_t i) { sharding.units[i]->unshard_async(); };
        module->mlps->before = [&](size_t i) { EXPECT_FALSE(sharding.units[i]->is_unsharded()); };
      }
      const tests::Loss loss = [&](const ModulePtr& each, int iteration, int rank) {
        self.log->clear();
        log->clear();
        const at::Tensor out = tests::sum_of({2, 8})(each, iteration, rank);
        if (each == plain) return out;
        Names calls;
        for (const auto& call : self.log->calls()) calls.push_back(call.op);
        const Names want =
            by_the_user ? Names{"allreduce", kGather, "allreduce", kGather, "allreduce", kGather}
                        : Names{"allreduce", "allreduce", "allreduce", kGather, kGather, kGather};
        EXPECT_EQ(calls, want);
        EXPECT_EQ(tests::events(*log, {Event::kUnshard}), (Names{"mlp0", "mlp1", "mlp2"}));
        return out;
      };
      for (int iteration = 0; iteration < 10; ++iteration) {
        parity.zero_grad(iteration);
        parity.backward(loss, iteration);
        parity.step();
      }
    });
  }
}

// A unit without parameters has nothing to gather.
TEST(FullyShardUnshard, test_unshard_no_param_group) {
  on_ranks(2, [](Rank& self) {
    const ModulePtr plain = tests::make_two_linears({{4, 4}, {4, 4}}, 42);
    const ModulePtr module = tests::make_two_linears({{4, 4}, {4, 4}}, 42);
    tests::Parity parity(self, plain, module, tests::shards_of(self));
    Sharding sharding(self, *module, {{"layer0"}, {"layer1"}}, {});
    ASSERT_TRUE(sharding.root().parameter_names().empty());
    for (int iteration = 0; iteration < 2; ++iteration) {
      self.log->clear();
      sharding.root().unshard_async();
      sharding.root().wait_unshard();
      EXPECT_TRUE(self.log->calls().empty());
      EXPECT_FALSE(sharding.units[0]->is_unsharded() || sharding.units[1]->is_unsharded());
      sharding.root().reshard();
      EXPECT_TRUE(self.log->calls().empty());
      parity.zero_grad(iteration);
      parity.backward(tests::sum_of({2, 4}), iteration);
      parity.step();
    }
  });
}

// Before any forward. A second call has nothing to do.
TEST(FullyShardUnshard, test_unshard_without_lazy_init) {
  on_ranks(2, [](Rank& self) {
    const ModulePtr plain = tests::make_mlp(4, 4, 42), module = tests::make_mlp(4, 4, 42);
    Sharding sharding(self, *module, {}, {});
    EXPECT_EQ(tests::difference(*plain, *module, tests::shards_of(self)), "");
    sharding.root().unshard();
    sharding.root().unshard();
    EXPECT_EQ(self.log->count(kGather), 1);
    EXPECT_EQ(tests::difference(*plain, *module), "");
    sharding.root().reshard();
    EXPECT_EQ(tests::difference(*plain, *module, tests::shards_of(self)), "");
  });
}

// PyTorch's sizes. The gradient of element i is `scale` times (i + i / 5) % 3: elements in the
// wrong place show, and sums over 128 ranks are exact in fp16.
struct Tensors : torch::nn::Module {
  Tensors() {
    const std::vector<std::vector<int64_t>> all = {{17, 257}, {17},      {64, 312}, {64},
                                                   {64, 64},  {512, 64}, {256},     {64, 297}};
    for (const auto& sizes : all) {
      register_parameter("w" + std::to_string(numbers.size()),
                         at::randn(sizes, tests::here(at::kFloat)));
      const at::Tensor index = at::arange(c10::multiply_integers(sizes), tests::here(at::kLong));
      const at::Tensor number = (index + index.div(5, "floor")).remainder(3).to(at::kFloat);
      numbers.push_back(number.view(sizes));
    }
  }
  at::Tensor forward(const at::Tensor& scale) {
    at::Tensor sum = at::zeros({}, scale.options());
    for (size_t i = 0; i < numbers.size(); ++i)
      sum = sum + (parameters()[i] * numbers[i]).sum() * scale;
    return sum;
  }
  std::vector<at::Tensor> numbers;
};

// Of 17 rows, 5 of 8 ranks have 3, one has 2, and two have none; of 128 ranks, 17 have one.
std::vector<int> numbers_of_ranks() {
  if (tests::is_on_device()) return {8};
  return {8, 128};
}

void expect_gathers(int ranks, const ReshardAfterForward& reshard, bool async_op) {
  on_ranks(ranks, [&](Rank& self) {
    const auto module = std::make_shared<Tensors>();
    std::vector<at::Tensor> whole;  // rank 0's
    for (const at::Tensor& weight : module->parameters()) {
      std::vector<at::Tensor> value = {weight.detach().clone()};
      self.by_hand->broadcast(value)->wait();
      whole.push_back(value[0]);
    }
    Sharding sharding(self, *module, {}, {.reshard_after_forward = reshard});
    sharding.root().set_unshard_async_op(async_op);
    const auto expect = [&](const char* when, const auto& part) {
      for (size_t i = 0; i < whole.size(); ++i)
        EXPECT_TRUE(at::equal(module->parameters()[i], part(whole[i]))) << when << " w" << i;
    };
    const auto all = [](const at::Tensor& of) { return of; };
    const auto mine = [&](const at::Tensor& of) { return part_of(of, self.rank, ranks); };
    const int smaller = reshard.ranks(/*is_root=*/true, ranks);
    // Each of the smaller group has the rows of several ranks.
    const auto post_forward = [&](const at::Tensor& of) {
      const int64_t rows = (of.size(0) + ranks - 1) / ranks * (ranks / smaller);
      const int64_t begin = std::min(of.size(0), self.rank % smaller * rows);
      return of.narrow(0, begin, std::min(of.size(0) - begin, rows));
    };
    for (int i = 0; i < 2; ++i) {
      expect("sharded", mine);
      sharding.root().unshard();
      expect("unsharded", all);
      modules::forward(module, at::ones({}, tests::here(at::kFloat)));
      expect("after forward", post_forward);
      sharding.root().unshard();
      expect("gathered again", all);
      sharding.root().reshard();
    }
  });
}

TEST(FullyShardUnshard, test_all_gather_fp32) {
  for (const int ranks : numbers_of_ranks()) {
    for (const bool async_op : {false, true}) expect_gathers(ranks, true, async_op);
    expect_gathers(ranks, ranks == 8 ? 4 : 8, false);
  }
}

// The mean of the ranks' numbers modulo 8, which is 3.5, in each backward.
TEST(FullyShardUnshard, test_reduce_scatter) {
  for (const int ranks : numbers_of_ranks()) {
    for (const at::ScalarType dtype : {at::kFloat, at::kHalf}) {
      for (const bool force_sum : {false, true}) {
        on_ranks(ranks, [&](Rank& self) {
          const auto module = std::make_shared<Tensors>();
          Sharding sharding(self, *module, {}, {.mixed_precision = {.reduce_dtype = dtype}});
          sharding.root().set_force_sum_reduction_for_comms(force_sum);
          for (int backwards = 1; backwards <= 2; ++backwards) {
            const at::Tensor scale = at::full({}, self.rank % 8, tests::here(at::kFloat));
            modules::forward(module, scale).backward();
            for (size_t w = 0; w < module->numbers.size(); ++w) {
              const at::Tensor got = module->parameters()[w].grad();
              EXPECT_EQ(got.scalar_type(), at::kFloat);
              const at::Tensor part = part_of(module->numbers[w], self.rank, ranks);
              EXPECT_TRUE(at::equal(got, part * 3.5 * backwards)) << "w" << w;
            }
          }
          EXPECT_EQ(self.log->count(kReduce), 2);
        });
      }
    }
  }
}

}  // namespace
}  // namespace pipewright::fsdp
