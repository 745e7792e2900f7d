// What a call of fully_shard accepts, and what it makes of the modules: rows of PyTorch's
// test_fully_shard_init.py.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>

#include "pipewright/fsdp/fully_shard.h"
#include "pipewright/ir/errors.h"
#include "tests/fsdp/sharding.h"
#include "tests/support/ranks/ground.h"
#include "tests/support/training/modules.h"
#include "tests/support/training/on_ranks.h"
#include "tests/support/training/parity.h"

namespace pipewright::fsdp {
namespace {

using tests::blocks;
using tests::difference;
using tests::events;
using tests::expect_errors;
using tests::mlps;
using tests::ModulePtr;
using tests::on_ranks;
using tests::Parity;
using tests::Rank;
using tests::Sharding;
using tests::shards_of;
using tests::sum_of;

using Names = std::vector<std::string>;

TEST(FullyShardInit, test_raise_noncontiguous_parameter) {
  expect_errors(
      2,
      "fully_shard: parameter `weight`, Float [4, 3, 2, 2] on {here}: expected a contiguous "
      "tensor",
      [](Rank& self) {
        const auto conv =
            std::make_shared<torch::nn::Conv2dImpl>(torch::nn::Conv2dOptions(3, 4, 2));
        conv->to(tests::here());
        conv->weight.set_data(conv->weight.contiguous(at::MemoryFormat::ChannelsLast));
        (void)fully_shard(*conv, self.group);
      });
}

TEST(FullyShardInit, test_invalid_shard_dim) {
  for (const int64_t dim : {1, -2}) {
    expect_errors(
        2,
        "fully_shard: parameter `bias`, Double [5] on {here}: shard_placement_fn: expected "
        "one of its 1 dimensions, got " +
            std::to_string(dim),
        [&](Rank& self) {
          torch::nn::Linear linear(4, 5);
          linear->to(tests::here(), at::kDouble);
          (void)fully_shard(*linear, self.group, {.shard_placement_fn = [&](const at::Tensor& of) {
            return of.dim() == 1 ? dim : 0;
          }});
        });
  }
}

TEST(FullyShardInit, test_init_1d_uneven_shard_largest_dim) {
  expect_errors(
      8,
      "fully_shard: parameter `layer0.weight`, Double [16, 17] on {here}: dimension 1 does "
      "not divide evenly by 8 ranks",
      [&](Rank& self) {
        const ModulePtr module = tests::make_two_linears({{17, 16}}, 42);
        (void)fully_shard(*module, self.group, {.shard_placement_fn = [](const at::Tensor& of) {
          return of.dim() == 2 && of.size(1) > of.size(0) ? 1 : 0;
        }});
      });
}

TEST(FullyShardInit, test_init_1d_transformer_shard_dim_neg1) {
  const auto last = [](const at::Tensor&) { return int64_t{-1}; };
  on_ranks(4, [&](Rank& self) {
    const ModulePtr plain = tests::make_transformer({}, 42);
    const ModulePtr module = tests::make_transformer({}, 42);
    Parity parity(self, plain, module, shards_of(self, last));
    Sharding sharding(self, *module, blocks(2), {.shard_placement_fn = last});
    EXPECT_EQ(parity.difference(), "") << "shards";
    for (const auto& unit : sharding.units) unit->unshard();
    EXPECT_EQ(difference(*plain, *module), "") << "gathered";
    for (const auto& unit : sharding.units) unit->reshard();
    for (int iteration = 0; iteration < 3; ++iteration) {
      parity.zero_grad(iteration);
      parity.backward(tests::sum_of_tokens({2, 8}, 8), iteration);
      parity.step();
    }
  });
}

// Which unit is the root follows from the calls of fully_shard: the last one around another. A unit
// that has trained as a root can still be nested, which PyTorch refuses.
TEST(FullyShardInit, test_fully_shard_is_root) {
  on_ranks(2, [](Rank& self) {
    const ModulePtr plain = tests::make_mlps(8, 2, 42), module = tests::make_mlps(8, 2, 42);
    const auto part_of = [](const ModulePtr& of) {
      return std::dynamic_pointer_cast<tests::TestModule>(of->parts()[0]);
    };
    const ModulePtr part = part_of(module), plain_part = part_of(plain);
    const auto log = std::make_shared<EventLog>();
    const Options options{.reshard_after_forward = true};
    std::vector<std::shared_ptr<Sharded>> units;
    units.push_back(fully_shard(*part->named_children()["in_proj"], self.group, options));
    units.push_back(fully_shard(*part, self.group, options));
    fsdp::record_events(*units[1], log);
    EXPECT_THROW((void)units[0]->data_parallel(), ContractError);
    (void)units[1]->data_parallel();
    {
      Parity parity(self, plain_part, part, shards_of(self));
      for (int iteration = 0; iteration < 2; ++iteration) {
        parity.zero_grad(iteration);
        parity.backward(sum_of({2, 8}), iteration);
        parity.step();
      }
    }
    log->clear();
    units.push_back(fully_shard(*module, self.group, options));
    fsdp::record_events(*units[2], log);
    EXPECT_THROW((void)units[1]->data_parallel(), ContractError);
    (void)units[2]->data_parallel();
    Parity parity(self, plain, module, shards_of(self));
    for (int iteration = 0; iteration < 3; ++iteration) {
      parity.zero_grad(iteration);
      log->clear();
      parity.backward(sum_of({2, 8}), iteration);
      Names unshards = events(*log, {Event::kUnshard});
      unshards.resize(3);
      EXPECT_EQ(unshards, (Names{"the root", "mlp0", "mlp0.in_proj"}));
      parity.step();
    }
  });
}

// A part that runs before its root has run, and between runs of the root: both train.
TEST(FullyShardInit, test_fully_shard_double_lazy_init) {
  on_ranks(2, [](Rank& self) {
    const ModulePtr plain = tests::make_mlps(8, 2, 42), module = tests::make_mlps(8, 2, 42);
    Parity parity(self, plain, module, shards_of(self));
    Sharding sharding(self, *module, mlps(2), {});
    const tests::Loss of_whole = sum_of({2, 8});
    const tests::Loss of_part = [&](const ModulePtr& each, int iteration, int rank) {
      const auto part = std::dynamic_pointer_cast<tests::TestModule>(each->parts()[0]);
      return of_whole(part, iteration, rank);
    };
    for (int iteration = 0; iteration < 6; ++iteration) {
      parity.zero_grad(0);
      parity.backward(iteration % 2 == 0 ? of_part : of_whole, iteration);
      parity.step();
    }
  });
}

// Errors and events name units by their path from the root, and parameters by their path in the
// unit. A unit of several modules puts their numbers before them.
TEST(FullyShardInit, test_fully_shard_module_and_param_fqns) {
  on_ranks(2, [](Rank& self) {
    const ModulePtr module = tests::make_mlps(8, 4, 42);
    Sharding sharding(self, *module,
                      {{"mlp0.in_proj"}, {"mlp0"}, {"mlp1.in_proj", "mlp1.out_proj"}, {"mlp1"}},
                      {});
    EXPECT_EQ(sharding.units[0]->parameter_names(), (Names{"weight", "bias"}));
    EXPECT_EQ(sharding.units[1]->parameter_names(), (Names{"out_proj.weight", "out_proj.bias"}));
    EXPECT_EQ(sharding.units[2]->parameter_names(),
              (Names{"0.weight", "0.bias", "1.weight", "1.bias"}));
    EXPECT_TRUE(sharding.units[3]->parameter_names().empty());
    Names rest = {"first.weight", "first.bias"};
    for (const char* mlp : {"mlp2", "mlp3"}) {
      for (const char* name :
           {"in_proj.weight", "in_proj.bias", "out_proj.weight", "out_proj.bias"})
        rest.push_back(mlp + ("." + std::string(name)));
    }
    EXPECT_EQ(sharding.root().parameter_names(), rest);
  });
  const auto read = [](const std::string& path, bool has_root) {
    return [=](Rank& self) {
      const ModulePtr module = tests::make_mlps(8, 2, 42);
      std::vector<std::shared_ptr<Sharded>> units;
      const auto at = [&](const char* name) { return tests::modules_at(*module, {name}); };
      units.push_back(fully_shard(at("mlp1.in_proj"), self.group));
      units.push_back(fully_shard(at("mlp1"), self.group));
      if (has_root) units.push_back(fully_shard(*module, self.group));
      const at::Tensor shard = module->named_parameters()[path];
      if (shard.dim() == 2)
        (void)at::mm(at::ones({2, 8}, tests::here(at::kDouble)), shard.t());
      else
        (void)at::add(at::ones({2, 8}, tests::here(at::kDouble)), shard);
    };
  };
  expect_errors(2, "reads parameter `weight` of `mlp1.in_proj`,",
                read("mlp1.in_proj.weight", true));
  expect_errors(2, "reads parameter `out_proj.bias` of `mlp1`,", read("mlp1.out_proj.bias", true));
  expect_errors(2, "reads parameter `first.bias` of the root,", read("first.bias", true));
  expect_errors(2, "reads parameter `weight` of `in_proj`,", read("mlp1.in_proj.weight", false));
  expect_errors(2, "reads parameter `out_proj.bias` of the root,",
                read("mlp1.out_proj.bias", false));
}

// PyTorch refuses a root of several modules, each of which could be the first that runs. Here each
// call of one of them is a forward of the root.
TEST(FullyShardInit, test_fully_shard_multi_module_root) {
  for (const ReshardAfterForward& reshard : {ReshardAfterForward(), ReshardAfterForward(true)}) {
    on_ranks(2, [&](Rank& self) {
      const ModulePtr plain = tests::make_mlp(8, 2, 42), module = tests::make_mlp(8, 2, 42);
      Parity parity(self, plain, module, shards_of(self));
      const auto unit = fully_shard(tests::modules_at(*module, {"in_proj", "out_proj"}), self.group,
                                    {.reshard_after_forward = reshard});
      for (int iteration = 0; iteration < 4; ++iteration) {
        parity.zero_grad(iteration);
        parity.backward(sum_of({2, 8}), iteration);
        EXPECT_FALSE(unit->is_unsharded());
        parity.step();
      }
    });
  }
}

// A process group does what a mesh of its ranks does, bit by bit, and both what a plain copy does.
TEST(FullyShardInit, test_1d_process_group_init) {
  on_ranks(4, [](Rank& self) {
    comms::Mesh mesh(*self.world, {{"dp", 4}});
    const ModulePtr plain = tests::make_mlps(8, 2, 42), of_mesh = tests::make_mlps(8, 2, 42);
    const ModulePtr of_group = tests::make_mlps(8, 2, 42);
    std::vector<std::shared_ptr<Sharded>> units;
    for (torch::nn::Module* part : tests::modules_at(*of_mesh, {"mlp0", "mlp1"}))
      units.push_back(fully_shard(*part, mesh, {"dp"}));
    units.push_back(fully_shard(*of_mesh, mesh, {"dp"}));
    for (torch::nn::Module* part : tests::modules_at(*of_group, {"mlp0", "mlp1"}))
      units.push_back(fully_shard(*part, self.group));
    units.push_back(fully_shard(*of_group, self.group));
    for (int iteration = 0; iteration < 3; ++iteration) {
      plain->zero_grad();
      for (const ModulePtr& each : {plain, of_mesh, of_group})
        sum_of({2, 8})(each, iteration, self.rank).backward();
      tests::average_grads(*plain, *self.by_hand);
      EXPECT_EQ(difference(*plain, *of_mesh, shards_of(self)), "");
      const std::vector<at::Tensor> left = of_mesh->parameters(), right = of_group->parameters();
      ASSERT_EQ(left.size(), right.size());
      for (size_t i = 0; i < left.size(); ++i) {
        EXPECT_TRUE(at::equal(left[i].grad(), right[i].grad()));
        EXPECT_TRUE(at::equal(left[i], right[i]));
      }
      for (const ModulePtr& each : {of_mesh, of_group}) each->zero_grad();
    }
  });
}

// Replicas: a mesh of two dimensions, two of the three of another mesh, and a process group to
// shard over whose reductions end with an all-reduce by the user over a group of replicas.
TEST(FullyShardInit, test_2d_process_group_init) {
  on_ranks(4, [](Rank& self) {
    comms::Mesh mesh(*self.world, {{"replicate", 2}, {"shard", 2}});
    comms::Mesh larger(*self.world, {{"pp", 1}, {"replicate", 2}, {"shard", 2}});
    const int column = self.rank % 2, row = self.rank / 2;
    const auto shards =
        self.world->make_group("row" + std::to_string(row), std::vector{2 * row, 2 * row + 1});
    const auto replicas =
        self.world->make_group("column" + std::to_string(column), std::vector{column, column + 2});
    const ModulePtr plain = tests::make_mlps(8, 2, 42);
    std::vector<ModulePtr> modules;
    std::vector<std::shared_ptr<Sharded>> units;
    for (int way = 0; way < 3; ++way) {
      modules.push_back(tests::make_mlps(8, 2, 42));
      const auto shard = [&](torch::nn::Module& each) {
        if (way < 2) return fully_shard(each, way == 0 ? mesh : larger, {"replicate", "shard"});
        auto unit = fully_shard(each, shards);
        unit->set_all_reduce_hook([replicas](const at::Tensor& grads) {
          std::vector<at::Tensor> sum = {grads};
          replicas->allreduce(sum)->wait();
          sum[0].div_(2);
        });
        return unit;
      };
      for (torch::nn::Module* part : tests::modules_at(*modules.back(), {"mlp0", "mlp1"}))
        units.push_back(shard(*part));
      units.push_back(shard(*modules.back()));
    }
    for (int iteration = 0; iteration < 3; ++iteration) {
      plain->zero_grad();
      sum_of({2, 8})(plain, iteration, self.rank).backward();
      tests::average_grads(*plain, *self.by_hand);
      for (const ModulePtr& each : modules) {
        each->zero_grad();
        sum_of({2, 8})(each, iteration, self.rank).backward();
        EXPECT_EQ(difference(*plain, *each, shards_of(self, nullptr, 2)), "");
      }
    }
  });
}

}  // namespace
}  // namespace pipewright::fsdp
