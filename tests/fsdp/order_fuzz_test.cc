// Random models and random training programs on 2 to 4 ranks, next to a plain copy. The order of
// collectives must follow from the calls that all ranks share: ranks keep different outputs alive,
// use different parameters of a unit, and drop different results. Ranks are threads, where
// collectives that do not match are an error.
//
// PIPEWRIGHT_FUZZ_PROGRAMS is the number of programs, PIPEWRIGHT_FUZZ_FIRST the first seed.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "pipewright/autograd/checkpoint.h"
#include "pipewright/fsdp/fully_shard.h"
#include "tests/fsdp/sharding.h"
#include "tests/support/fuzz/fuzz.h"
#include "tests/support/training/modules.h"
#include "tests/support/training/on_ranks.h"
#include "tests/support/training/parity.h"

namespace pipewright::fsdp {
namespace {

using tests::Chance;
using tests::ModulePtr;
using tests::random_input;
using tests::Rank;
using tests::Sharding;

constexpr int64_t kDim = 3;

// Weights that scale the input, of which each call uses some; then its parts, as units or not.
struct Block : torch::nn::Module {
  Block(int weight_count, int part_count, uint64_t seed) {
    for (int i = 0; i < weight_count; ++i) {
      weights.push_back(register_parameter("w" + std::to_string(i),
                                           random_input({kDim}, seed + static_cast<uint64_t>(i))));
    }
    for (int i = 0; i < part_count; ++i) {
      parts.push_back(register_module(
          "part" + std::to_string(i),
          std::make_shared<Block>(1 + i, 0, seed + 10 * static_cast<uint64_t>(1 + i))));
    }
  }
  // Bit i of `used`: weight i.
  at::Tensor forward(const at::Tensor& x, const at::Tensor& used) {
    const auto mask = used.item<int64_t>();
    at::Tensor y = x;
    for (size_t i = 0; i < weights.size(); ++i) {
      if ((mask >> i) & 1) y = y + at::tanh(x * weights[i]);
    }
    for (const auto& part : parts) y = y + modules::forward(part, at::tanh(y), used);
    return y / 2;
  }
  std::vector<at::Tensor> weights;
  std::vector<std::shared_ptr<Block>> parts;
};

enum class How {
  kPlain,
  kCheckpointed,
  kWithoutGrad,  // added as a constant
  kOnData,       // takes the model's input, as a stem does
  kUnused,       // its result is not used
};

struct CallOf {
  int block = 0;
  How how = How::kPlain;
  int64_t used = 0;   // this rank's weights
  bool kept = false;  // kUnused: this rank keeps the result
};

struct Model : tests::TestModule {
  Model(Chance& chance, uint64_t seed) {
    scale = register_parameter("scale", random_input({kDim}, seed));
    for (int i = 0, count = 2 + chance.below(3); i < count; ++i) {
      blocks.push_back(
          register_module("block" + std::to_string(i),
                          std::make_shared<Block>(1 + chance.below(3), chance.below(3),
                                                  seed + 100 * static_cast<uint64_t>(i + 1))));
    }
  }
  at::Tensor forward(const at::Tensor& input) override {
    at::Tensor x = input * scale;
    for (const CallOf& call : calls) {
      const auto& block = blocks[static_cast<size_t>(call.block)];
      const at::Tensor used = at::scalar_tensor(call.used, at::kLong);
      const auto run = [block](const std::vector<at::Tensor>& in) {
        return std::vector{modules::forward(block, in[0], in[1])};
      };
      switch (call.how) {
        case How::kPlain:
          x = run({x, used})[0];
          break;
        case How::kCheckpointed:
          x = autograd::checkpoint(run, {x, used})[0];
          break;
        case How::kWithoutGrad: {
          const c10::NoGradGuard no_grad;
          const at::Tensor constant = run({x, used})[0];
          const c10::AutoGradMode with_grad(true);
          x = x + constant;
          break;
        }
        case How::kOnData:
          x = x + run({input, used})[0];
          break;
        case How::kUnused: {
          const at::Tensor unused = run({x, used})[0];
          if (call.kept) kept->push_back(unused);
          break;
        }
      }
    }
    return at::tanh(x);
  }
  at::Tensor scale;
  std::vector<std::shared_ptr<Block>> blocks;
  std::vector<CallOf> calls;  // of the next forward
  std::vector<at::Tensor>* kept = nullptr;
};

// A call's choices: what ranks share comes from `all`, what may differ from `mine`.
std::vector<CallOf> draw_calls(const Model& model, Chance& all, Chance& mine, bool data_has_grad) {
  std::vector<CallOf> calls;
  const int blocks = static_cast<int>(model.blocks.size());
  for (int i = 0, count = 1 + all.below(5); i < count; ++i) {
    CallOf call;
    call.block = all.one_in(3) ? all.below(blocks) : i % blocks;
    constexpr How kHows[] = {How::kPlain,       How::kPlain,  How::kPlain, How::kCheckpointed,
                             How::kWithoutGrad, How::kOnData, How::kUnused};
    call.how = kHows[all.below(7)];
    call.used = all.one_in(4) ? 0 : mine.below(8);
    // Backward must reach the same calls on all ranks: a stem whose data needs no gradient is only
    // reached through its weights, of which the first is never frozen.
    if (call.how == How::kOnData && !data_has_grad) call.used |= 1;
    call.kept = mine.one_in(2);
    calls.push_back(call);
  }
  return calls;
}

// Units: some blocks, some parts of blocks, and the model.
tests::Groups draw_groups(const Model& model, Chance& all) {
  tests::Groups groups;
  for (size_t i = 0; i < model.blocks.size(); ++i) {
    const std::string block = "block" + std::to_string(i);
    for (size_t j = 0; j < model.blocks[i]->parts.size(); ++j) {
      if (all.one_in(2)) groups.push_back({block + ".part" + std::to_string(j)});
    }
    if (!all.one_in(4)) groups.push_back({block});
  }
  return groups;
}

// Any weight but the first of a block, and of the model.
void freeze(Model& model, uint64_t seed) {
  Chance chance(seed + 2);
  for (auto& named : model.named_parameters()) {
    const bool may = !named.key().ends_with("w0") && named.key() != "scale";
    named.value().set_requires_grad(!(chance.one_in(5) && may));
  }
}

void run_program(Rank& self, uint64_t seed) {
  Chance all(seed), mine(seed * 31 + 7 + static_cast<uint64_t>(self.rank));
  const uint64_t weights = 1000 * seed;
  Chance shape(seed + 1), same_shape(seed + 1);
  const auto plain = std::make_shared<Model>(shape, weights);
  const auto module = std::make_shared<Model>(same_shape, weights);
  freeze(*plain, seed);
  freeze(*module, seed);
  const ReshardAfterForward reshards[] = {{}, true, false, ReshardAfterForward(self.world->size())};
  const BackwardPrefetch prefetches[] = {BackwardPrefetch::kNone, BackwardPrefetch::kPre,
                                         BackwardPrefetch::kPost};
  Options options;
  options.reshard_after_forward = reshards[all.below(4)];
  options.backward_prefetch = prefetches[all.below(3)];
  const tests::Groups groups = draw_groups(*module, all);
  Sharding sharding(self, *module, groups, options);
  const auto optimizer = tests::adam(*module), plain_optimizer = tests::adam(*plain);
  std::vector<at::Tensor> kept, plain_kept;
  module->kept = &kept;
  plain->kept = &plain_kept;
  uint64_t data = 0;
  for (int step = 0; step < 4; ++step) {
    // A step is several backwards, of which the last ones reduce; each is through one forward or
    // several, in the order of the forwards or in another one.
    const int backwards = 1 + all.below(2);
    optimizer->zero_grad();
    plain_optimizer->zero_grad();
    if (all.one_in(3)) {
      const uint64_t frozen = 100 * seed + static_cast<uint64_t>(step);
      freeze(*plain, frozen);
      freeze(*module, frozen);
    }
    std::vector<std::vector<std::pair<at::Tensor, at::Tensor>>> losses;  // plain, sharded
    for (int b = 0; b < backwards; ++b) {
      losses.emplace_back();
      for (int f = 0, forwards = 1 + all.below(2); f < forwards; ++f) {
        const bool is_lost = all.one_in(3), has_grad = all.one_in(2);
        const at::Tensor input =
            random_input({2, kDim}, 7919 * seed + 8 * ++data + static_cast<uint64_t>(self.rank));
        plain->calls = module->calls = draw_calls(*module, all, mine, has_grad);
        at::Tensor theirs, ours;
        {
          const c10::AutoGradMode mode(!is_lost || !all.one_in(3));
          theirs = forward(plain, input.clone().set_requires_grad(has_grad));
          ours = forward(module, input.clone().set_requires_grad(has_grad));
        }
        ASSERT_TRUE(at::allclose(theirs, ours, 1e-9, 1e-12)) << seed << " step " << step;
        if (!is_lost)
          losses.back().emplace_back(theirs.sum(), ours.sum());
        else if (mine.one_in(2))
          kept.push_back(ours);
      }
    }
    if (all.one_in(3)) std::reverse(losses.begin(), losses.end());
    const bool early = all.one_in(3);
    std::erase_if(losses, [](const auto& of) { return of.empty(); });
    for (size_t b = 0; b < losses.size(); ++b) {
      const bool last = b + 1 == losses.size();
      sharding.root().set_is_last_backward(last);
      sharding.root().set_requires_gradient_sync(last || early);
      const bool twice = all.one_in(4);
      at::Tensor theirs = at::zeros({}, at::kDouble), ours = at::zeros({}, at::kDouble);
      for (const auto& [plain_loss, loss] : losses[b]) {
        theirs = theirs + plain_loss;
        ours = ours + loss;
      }
      theirs.backward({}, twice);
      ours.backward({}, twice);
      if (!twice) continue;
      theirs.backward();
      ours.backward();
    }
    if (mine.one_in(2)) kept.clear();
    losses.clear();
    for (const auto& unit : sharding.units) unit->reshard();
    tests::average_grads(*plain, *self.by_hand);
    ASSERT_EQ(tests::difference(*plain, *module, tests::shards_of(self)), "")
        << seed << " step " << step;
    optimizer->step();
    plain_optimizer->step();
  }
}

TEST(FullyShardFuzz, Order) {
  tests::for_each_seed(60, [](uint64_t seed) {
    const int ranks = 2 + static_cast<int>(seed % 3);
    const std::vector<std::string> errors = tests::errors_on_ranks(
        ranks, [seed](Rank& self) { run_program(self, seed); }, nullptr, std::chrono::seconds(20));
    EXPECT_EQ(errors, std::vector<std::string>(static_cast<size_t>(ranks)));
  });
}

}  // namespace
}  // namespace pipewright::fsdp
