// The lists of events that PyTorch's test_fully_shard_comm.py expects of a Transformer: in forward
// and in backward, with and without checkpointing, for each value of reshard_after_forward, and
// with lists of units to gather ahead. Gradients and parameters equal a plain copy's in each step.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

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
using tests::ModulePtr;
using tests::on_ranks;
using tests::Rank;
using tests::Sharding;

using Names = std::vector<std::string>;

// On the test device for its orders of execution, which checkpointing does not change.
std::vector<Checkpointed> checkpointings() {
  if (tests::is_on_device()) return {Checkpointed::kNot};
  return {Checkpointed::kNot, Checkpointed::kAround, Checkpointed::kInside, Checkpointed::kWrapper};
}

Names joined(const std::vector<Names>& lists) {
  Names all;
  for (const Names& list : lists) all.insert(all.end(), list.begin(), list.end());
  return all;
}

// Gathers "0", for `block0`, and "root", "free 0", and "post 0" where a backward ends.
Names steps(const EventLog& log, bool frees) {
  Names found;
  for (const EventRecord& entry : log) {
    std::string unit = entry.unit == "the root" ? "root" : entry.unit;
    std::erase(unit, '`');
    if (unit.starts_with("block")) unit.erase(0, 5);
    if (entry.event == Event::kUnshard) found.push_back(unit);
    if (entry.event == Event::kReshard && frees) found.push_back("free " + unit);
    if (entry.event == Event::kPostBackward) found.push_back("post " + unit);
  }
  return found;
}

struct Case {
  ReshardAfterForward reshard_after_forward = true;
  int layers = 3, forwards = 1;
  bool frees = false;  // compare when parameters are freed too
  std::function<void(Sharding&)> set = nullptr;
  Names forward, backward;
};

// Trains for three steps on four ranks, each with `forwards` forwards before one backward.
void expect_steps(const Case& the, Checkpointed checkpointed) {
  on_ranks(4, [&](Rank& self) {
    const ModulePtr plain = tests::make_transformer({.layers = the.layers}, 42);
    const ModulePtr module =
        tests::make_transformer({.layers = the.layers, .checkpointed = checkpointed}, 42);
    tests::Parity parity(self, plain, module, tests::shards_of(self));
    Sharding sharding(self, *module, blocks(the.layers),
                      {.reshard_after_forward = the.reshard_after_forward});
    const auto log = sharding.record_events();
    if (the.set) the.set(sharding);
    const tests::Loss loss = [&](const ModulePtr& each, int iteration, int rank) {
      log->clear();
      at::Tensor sum;
      for (int i = 0; i < the.forwards; ++i) {
        const at::Tensor one = tests::sum_of_tokens({2, 8}, 8)(each, iteration + 10 * i, rank);
        sum = sum.defined() ? sum + one : one;
      }
      if (each == module) {
        EXPECT_EQ(steps(*log, the.frees), the.forward) << static_cast<int>(checkpointed);
      }
      log->clear();
      return sum;
    };
    for (int iteration = 0; iteration < 3; ++iteration) {
      parity.zero_grad(iteration);
      parity.backward(loss, iteration);
      EXPECT_EQ(steps(*log, the.frees), the.backward) << static_cast<int>(checkpointed);
      for (const auto& unit : sharding.units) EXPECT_FALSE(unit->is_unsharded());
      parity.step();
    }
  });
}

const Names kRoot = {"root"}, kForward = {"0", "1", "2"}, kPostRoot = {"post root"};
const Names kBackward = {"2", "1", "post 2", "0", "post 1", "post 0"};
const Names kKept = {"post 2", "post 1", "post 0"};

// A reduction runs beside the next unit's backward, and no longer: each that is under way holds the
// gradients of a whole unit.
TEST(FullyShardReductions, AtMostTwoAreUnderWay) {
  on_ranks(2, [](Rank& self) {
    const ModulePtr module = tests::make_mlps(8, 4, 42);
    Sharding sharding(self, *module, tests::mlps(4), {});
    const auto log = sharding.record_events();
    forward(module, tests::random_input({2, 8}, 1)).sum().backward();
    Names found;
    for (const EventRecord& entry : *log) {
      if (entry.event == Event::kReduce) found.push_back("begin " + entry.unit);
      if (entry.event == Event::kWaitReduce) found.push_back("end " + entry.unit);
    }
    EXPECT_EQ(found, (Names{"begin `mlp3`", "begin `mlp2`", "end `mlp3`", "begin `mlp1`",
                            "end `mlp2`", "begin `mlp0`", "end `mlp1`", "begin the root",
                            "end `mlp0`", "end the root"}));
  });
}

TEST(FullyShardPrefetch, test_backward_prefetch_forward_backward) {
  for (const Checkpointed checkpointed : checkpointings()) {
    const Names forward = joined({kRoot, kForward});
    for (const ReshardAfterForward& reshard : {ReshardAfterForward(true), ReshardAfterForward(2)}) {
      expect_steps({.reshard_after_forward = reshard,
                    .forward = forward,
                    .backward = joined({kRoot, kBackward, kPostRoot})},
                   checkpointed);
    }
    expect_steps({.reshard_after_forward = false,
                  .forward = forward,
                  .backward = joined({kKept, kPostRoot})},
                 checkpointed);
    expect_steps({.reshard_after_forward = {},
                  .forward = forward,
                  .backward = joined({kBackward, kPostRoot})},
                 checkpointed);
  }
}

TEST(FullyShardPrefetch, test_backward_prefetch_multi_forward) {
  for (const Checkpointed checkpointed : checkpointings()) {
    const Names forward = joined({kRoot, kForward});
    for (const ReshardAfterForward& reshard : {ReshardAfterForward(true), ReshardAfterForward(2)}) {
      expect_steps({.reshard_after_forward = reshard,
                    .forwards = 2,
                    .forward = joined({forward, forward}),
                    .backward = joined({kRoot, kBackward, kBackward, kPostRoot})},
                   checkpointed);
    }
    // Backward of the second forward frees what both have kept.
    expect_steps({.reshard_after_forward = false,
                  .forwards = 2,
                  .forward = forward,
                  .backward = joined({kKept, kBackward, kPostRoot})},
                 checkpointed);
    expect_steps({.reshard_after_forward = {},
                  .forwards = 2,
                  .forward = joined({forward, kForward}),
                  .backward = joined({kBackward, kBackward, kPostRoot})},
                 checkpointed);
  }
}

// In backward, by default: the unit that comes next. PyTorch's test notes the end of a unit's
// backward after its parameters are freed, ours before.
const Names kForwardOfFour[] = {
    {"root", "0", "1", "free 0", "2", "free 1", "3", "free 2", "free 3", "free root"},
    {"root", "0", "1", "2", "free 0", "3", "free 1", "free 2", "free 3", "free root"}};
const Names kBackwardOfFour[] = {
    {"root", "3", "2", "post 3", "free 3", "1", "post 2", "free 2", "0", "post 1", "free 1",
     "post 0", "free 0", "post root", "free root"},
    {"root", "3", "2", "1", "post 3", "free 3", "0", "post 2", "free 2", "post 1", "free 1",
     "post 0", "free 0", "post root", "free root"}};

TEST(FullyShardPrefetch, test_set_modules_to_forward_prefetch) {
  for (const Checkpointed checkpointed : checkpointings()) {
    for (const size_t ahead : {size_t{1}, size_t{2}}) {
      const auto set = [ahead](Sharding& sharding) {
        for (size_t i = 0; i + ahead < 4; ++i) {
          std::vector<Sharded*> units;
          for (size_t j = 1; j <= ahead; ++j) units.push_back(sharding.units[i + j].get());
          sharding.units[i]->set_modules_to_forward_prefetch(units);
        }
      };
      expect_steps({.layers = 4,
                    .frees = true,
                    .set = set,
                    .forward = kForwardOfFour[ahead - 1],
                    .backward = kBackwardOfFour[0]},
                   checkpointed);
    }
  }
}

TEST(FullyShardPrefetch, test_set_modules_to_backward_prefetch) {
  for (const Checkpointed checkpointed : checkpointings()) {
    for (const size_t ahead : {size_t{1}, size_t{2}}) {
      const auto set = [ahead](Sharding& sharding) {
        for (size_t i = 0; i < 4; ++i) {
          std::vector<Sharded*> units;
          for (size_t j = 1; j <= ahead && i >= ahead; ++j)
            units.push_back(sharding.units[i - j].get());
          if (i >= ahead) sharding.units[i]->set_modules_to_backward_prefetch(units);
          if (i + 1 < 4) {
            sharding.units[i]->set_modules_to_forward_prefetch({sharding.units[i + 1].get()});
          }
        }
      };
      expect_steps({.layers = 4,
                    .frees = true,
                    .set = set,
                    .forward = kForwardOfFour[0],
                    .backward = kBackwardOfFour[ahead - 1]},
                   checkpointed);
    }
  }
}

}  // namespace
}  // namespace pipewright::fsdp
