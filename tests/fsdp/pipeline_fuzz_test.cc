// Random pipelines of sharded or replicated stages, driven by executors on 2 to 4 ranks, next to
// the model without a pipeline: any schedule of the catalogue and lowering, any layers as units,
// checkpointed and frozen parts, several reductions per step, parameters that some copies do not
// use, and delays. Ranks are threads, where collectives that do not match are an error.
//
// PIPEWRIGHT_FUZZ_PROGRAMS is the number of programs, PIPEWRIGHT_FUZZ_FIRST the first seed.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <random>

#include "pipewright/ddp/replicate.h"
#include "pipewright/fsdp/fully_shard.h"
#include "pipewright/schedule/lowering/lower.h"
#include "tests/fsdp/sharding.h"
#include "tests/support/catalogue/catalogue.h"
#include "tests/support/fuzz/fuzz.h"
#include "tests/support/training/pipeline.h"

namespace pipewright::fsdp {
namespace {

using tests::Chance;
using tests::kPipelineLayers;
using tests::Layer;
using tests::Layers;
using tests::PipelineCase;

// A valid program for `ranks` pipeline ranks.
ir::Program draw_program(Chance& chance, int ranks) {
  const auto schedules = tests::schedules_of_one_replica();
  while (true) {
    const auto& spec = *schedules[static_cast<size_t>(chance.below(schedules.size()))];
    const schedules::Shape shape{ranks, schedules::default_stages(spec, ranks),
                                 tests::kPipelineMicrobatches};
    if (schedules::shape_error(spec, shape) || kPipelineLayers % shape.stages != 0) continue;
    ir::Lowering policies;
    policies.reduce_every = 1 << chance.below(4);
    if (chance.one_in(2)) policies.residency = 1 + chance.below(3);
    if (chance.one_in(4)) policies.split_backward = true;
    ir::Diagnostics diagnostics;
    auto program = schedule::lower(schedules::make_order(spec, shape), policies, &diagnostics);
    if (program) return std::move(*program);
  }
}

PipelineCase draw(Chance& chance) {
  constexpr std::pair<int, int> kRanksAndCopies[] = {{1, 2}, {1, 3}, {1, 4},
                                                     {2, 1}, {2, 2}, {4, 1}};
  const auto [ranks, copies] = kRanksAndCopies[chance.below(std::size(kRanksAndCopies))];
  PipelineCase pipeline{.program = draw_program(chance, ranks), .copies = copies, .steps = 2};
  pipeline.delays = chance.one_in(3);
  pipeline.layers.partial = chance.one_in(2);
  pipeline.layers.call = [](const std::shared_ptr<Layer>& layer, const at::Tensor& x) {
    return modules::forward(layer, x);
  };
  for (int layer = 0; layer < kPipelineLayers; ++layer) {
    if (chance.one_in(3)) pipeline.layers.checkpointed_layers.insert(layer);
    for (const char* name : {"weight1", "bias1", "weight2"}) {
      if (chance.one_in(6))
        pipeline.layers.frozen.insert("layer" + std::to_string(layer) + "." + name);
    }
  }
  return pipeline;
}

// The same units on all copies: `chance` is copied for each stage.
std::shared_ptr<modules::DataParallel> wrap(Chance chance, bool shards, Layers& stage,
                                            const comms::BackendPtr& group) {
  const ReshardAfterForward reshards[] = {{}, true, false};
  const Options sharding = {.reshard_after_forward = reshards[chance.below(3)]};
  const double bucket = chance.one_in(2) ? 0 : 25;
  const ddp::Options replication = {
      .bucket_cap_mb = bucket, .first_bucket_cap_mb = bucket, .find_unused_parameters = true};
  std::vector<std::shared_ptr<Sharded>> units;
  std::vector<std::shared_ptr<ddp::Replicated>> parts;
  for (const auto& layer : stage.layers()) {
    if (chance.one_in(3)) continue;
    if (shards)
      units.push_back(fully_shard(*layer, group, sharding));
    else
      parts.push_back(ddp::replicate(*layer, group, replication));
  }
  if (shards) return fully_shard(stage, group, sharding)->data_parallel();
  return ddp::replicate(stage, group, replication)->data_parallel();
}

TEST(PipelineFuzz, Order) {
  tests::for_each_seed(40, [](uint64_t seed) {
    Chance chance(seed);
    const PipelineCase pipeline = draw(chance);
    const bool shards = !chance.one_in(3);
    const auto trained = train_pipeline(
        pipeline, [&](const std::shared_ptr<Layers>& stage, const comms::BackendPtr& group) {
          return wrap(chance, shards, *stage, group);
        });
    expect_trained(train_reference(pipeline), trained, [&](const at::Tensor& whole, int copy) {
      return shards ? tests::part_of(whole, copy, pipeline.copies) : whole;
    });
  });
}

}  // namespace
}  // namespace pipewright::fsdp
