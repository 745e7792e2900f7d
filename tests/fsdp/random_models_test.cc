// Random models whose stages are units of fully_shard, next to themselves without a pipeline and
// without units. Two copies have the same batches, so their mean is the gradient of one.
//
// PIPEWRIGHT_FUZZ_PROGRAMS is the number of models, PIPEWRIGHT_FUZZ_FIRST the first seed.
#include "tests/executor/random_models.h"

#include <gtest/gtest.h>

#include "pipewright/comms/mesh.h"
#include "pipewright/fsdp/fully_shard.h"
#include "tests/executor/against_plain.h"
#include "tests/executor/small_pipelines.h"
#include "tests/support/fuzz/fuzz.h"

namespace pipewright::fsdp {
namespace {

using executor::Outcome;
using executor::PlainModel;
using executor::RandomCase;

constexpr int kSteps = 2, kCopies = 2;

struct Weights : torch::nn::Module {
  explicit Weights(const modules::Tensors& weights) {
    for (size_t i = 0; i < weights.size(); ++i)
      register_parameter("w" + std::to_string(i), weights[i], weights[i].requires_grad());
  }
};

// The stages of `model` as units; weights become shards.
struct ShardedModel {
  ShardedModel(const PlainModel& plain, const comms::BackendPtr& group,
               ReshardAfterForward reshard_after_forward)
      : model(plain) {
    for (size_t stage = 0; stage < plain.weights.size(); ++stage) {
      const auto module = std::make_shared<Weights>(plain.weights[stage]);
      units.push_back(
          fully_shard(*module, group, {.reshard_after_forward = reshard_after_forward}));
      modules.push_back(module);
      model.weights[stage] = module->parameters();
    }
    model.forward = [modules = modules, forward = plain.forward](int stage,
                                                                 const modules::Tensors& inputs) {
      return modules::call(
          *modules[static_cast<size_t>(stage)],
          [&](const modules::Tensors& its) { return forward(stage, its); }, inputs);
    };
  }
  PlainModel model;
  std::vector<std::shared_ptr<Weights>> modules;
  std::vector<std::shared_ptr<Sharded>> units;
};

// What each rank has, next to what it should have. Returns false if the model cannot be trained.
using TrainRank = std::function<Outcome(const RandomCase& drawn, int rank, comms::World& world)>;
using Expected = std::function<Outcome(const Outcome& plain, const ir::Program& program, int rank)>;
bool expect_trained(const RandomCase& drawn, int ranks, const TrainRank& train_rank,
                    const Expected& expected) {
  Outcome plain;
  try {
    plain = train_plain(drawn.make(false), drawn.program.placement.num_stages(),
                        drawn.program.num_microbatches, kSteps);
  } catch (const std::exception&) {
    return false;  // nothing to train
  }
  std::vector<Outcome> found(static_cast<size_t>(ranks));
  const std::vector<std::string> errors =
      executor::errors_of(ranks, [&](int rank, comms::World& world) {
        found[static_cast<size_t>(rank)] = train_rank(drawn, rank, world);
      });
  for (int rank = 0; rank < ranks; ++rank) {
    const auto r = static_cast<size_t>(rank);
    EXPECT_EQ(errors[r], "") << drawn.description;
    if (errors[r].empty()) {
      EXPECT_EQ(difference(expected(plain, drawn.program, rank), found[r]), "")
          << drawn.description;
    }
  }
  return true;
}

TEST(RandomModels, ShardedStages) {
  int trained = 0;
  tests::for_each_seed(150, [&](uint64_t seed) {
    trained += expect_trained(
        executor::draw_case(seed, {.shares = false}), 2 * kCopies,
        [&](const RandomCase& drawn, int, comms::World& world) {
          comms::Mesh mesh(world, {{"dp", kCopies}, {"pp", 2}});
          ShardedModel sharded(drawn.make(true), mesh.group({"dp"}), seed % 2 == 0);
          for (const auto& unit : sharded.units)
            sharded.model.data_parallel.push_back(unit->data_parallel());
          return train_rank_of(drawn.program, sharded.model, world, kSteps,
                               {.ranks = mesh.ranks({"pp"})});
        },
        [](const Outcome& plain, const ir::Program& program, int rank) {
          return shards_of(part_of(plain, program.placement, rank % 2), rank / 2, kCopies);
        });
  });
  EXPECT_GT(trained, 75);
}

TEST(RandomModels, WithoutAnExecutor) {
  int trained = 0;
  tests::for_each_seed(300, [&](uint64_t seed) {
    trained += expect_trained(
        executor::draw_case(seed, {.shares = false, .side_values = false}), kCopies,
        [](const RandomCase& drawn, int, comms::World& world) {
          // Kept parameters would be whole at the end, where no backward reaches a stage.
          const ShardedModel sharded(drawn.make(true), world.make_group("dp", {{0, 1}}), true);
          return train_plain(sharded.model, drawn.program.placement.num_stages(),
                             drawn.program.num_microbatches, kSteps);
        },
        [](const Outcome& plain, const ir::Program&, int rank) {
          return shards_of(plain, rank, kCopies);
        });
  });
  EXPECT_GT(trained, 150);
}

}  // namespace
}  // namespace pipewright::fsdp
