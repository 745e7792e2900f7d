#include "examples/local_model.h"

#include <algorithm>
#include <string>
#include <vector>

#include "examples/gpt.h"
#include "pipewright/ddp/replicate.h"
#include "pipewright/executor/module_stage.h"
#include "pipewright/fsdp/fully_shard.h"
#include "pipewright/modules/distribution.h"

namespace pipewright::examples {
namespace {

modules::MixedPrecisionPolicy policy_of(const Options& options) {
  if (!options.is_mixed_precision()) return {};
  return {.param_dtype = options.param_dtype, .reduce_dtype = options.reduce_dtype};
}

// Shards the parameters bottom-up: each block as one group, then the rest of the stage. Shards have
// replicas with --dp-replicate.
std::shared_ptr<modules::DataParallel> shard(GptStage& stage, comms::Mesh& mesh,
                                             const Options& options) {
  const std::vector<std::string> dims = {"dp_replicate", "dp_shard"};
  const fsdp::Options sharding = {.mixed_precision = policy_of(options)};
  std::vector<std::shared_ptr<fsdp::Sharded>> units;
  for (const auto& block : stage.blocks())
    units.push_back(fsdp::fully_shard(*block, mesh, dims, sharding));
  return fsdp::fully_shard(stage, mesh, dims, sharding)->data_parallel();
}

// With --tie, the first and the last stage have copies of the token embedding; and with two
// replicas of the model, each parameter has one in both.
std::shared_ptr<modules::TiedParameters> tie_parameters(
    const std::map<int, std::shared_ptr<GptStage>>& stages, bool ties_tokens,
    const ir::Placement& placement, const comms::Mesh& mesh, comms::World& world) {
  const std::vector<int> pipeline = mesh.ranks({"pp"});
  const auto ranks_of = [&](int stage) {
    std::vector<int> ranks = placement.ranks_of(stage);
    for (int& rank : ranks) rank = pipeline[static_cast<size_t>(rank)];
    return ranks;
  };
  auto tied = std::make_shared<modules::TiedParameters>(world);
  std::vector<at::Tensor> tokens;
  if (ties_tokens) {
    for (const auto& [index, stage] : stages) {
      for (const at::Tensor& copy : stage->token_weights()) tokens.push_back(copy);
    }
  }
  if (!tokens.empty()) {
    std::vector<int> ranks = ranks_of(0);
    for (const int rank : ranks_of(placement.num_stages() - 1)) ranks.push_back(rank);
    tied->tie(kTokenWeights, ranks, tokens);
  }
  if (placement.num_replicas() == 1) return tied;
  for (const auto& [index, stage] : stages) {
    for (const auto& parameter : stage->named_parameters()) {
      const bool is_tied = std::ranges::any_of(
          tokens, [&](const at::Tensor& copy) { return copy.is_same(parameter.value()); });
      if (!is_tied) tied->tie(parameter.key(), ranks_of(index), {parameter.value()});
    }
  }
  return tied;
}

// For --dp-shard 1. fully_shard over one rank would train the same, but copies gradients to reduce
// them, which replicate's buckets hold from the start.
std::shared_ptr<modules::DataParallel> replicate(GptStage& stage, comms::Mesh& mesh,
                                                 const Options& options) {
  return ddp::replicate(stage, mesh, {"dp_replicate"}, {.mixed_precision = policy_of(options)})
      ->data_parallel();
}

}  // namespace

LocalModel make_local_model(const Options& options, const ir::Placement& placement,
                            comms::Mesh& mesh, comms::World& world, at::Device device) {
  LocalModel model;
  std::map<int, std::shared_ptr<GptStage>> stages;
  for (const int index : placement.stages_of(mesh.coordinate("pp"))) {
    const auto slices = std::make_shared<executor::SliceCache>();
    const auto stage = make_gpt_stage(options.model, index, placement.num_stages(), slices);
    stage->to(device);  // the weights are those of a CPU's generator
    stages[index] = stage;
    if (options.tp > 1)
      model.split.push_back(
          tp::parallelize(*stage, stage->plan(options.sequence_parallel), mesh, "tp"));
    const auto runs = executor::make_stage(stage);
    // Embeddings of positions and attention read it; an output layer alone does not.
    runs->set_slice_cache(index > 0 && stage->blocks().empty() ? nullptr : slices);
    model.stages[index] = {runs, options.dp_shard > 1 ? shard(*stage, mesh, options)
                                                      : replicate(*stage, mesh, options)};
  }
  if (options.model.tie || placement.num_replicas() > 1)
    model.tied = tie_parameters(stages, options.model.tie, placement, mesh, world);
  for (const auto& [index, stage] : stages) {
    std::map<std::string, std::string> tied;
    if (options.model.tie && index == placement.num_stages() - 1) tied[kTiedOutput] = kTokenWeights;
    model.state.add_module(*stage, modules::layouts(*stage), /*prefix=*/"", tied);
    for (const at::Tensor& parameter : stage->parameters()) model.parameters.push_back(parameter);
  }
  return model;
}

}  // namespace pipewright::examples
