#include "examples/local_model.h"

#include <string>

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

// The first and the last stage have copies of the token embedding.
std::shared_ptr<modules::TiedParameters> tie_embeddings(
    const std::map<int, std::shared_ptr<GptStage>>& stages, const ir::Placement& placement,
    const comms::Mesh& mesh, comms::World& world) {
  const std::vector<int> pipeline = mesh.ranks({"pp"});
  std::vector<int> ranks;
  for (const int stage : {0, placement.num_stages() - 1})
    ranks.push_back(pipeline[static_cast<size_t>(placement.rank_of(stage))]);
  std::vector<at::Tensor> copies;
  for (const auto& [index, stage] : stages) {
    for (const at::Tensor& copy : stage->token_weights()) copies.push_back(copy);
  }
  auto tied = std::make_shared<modules::TiedParameters>(world);
  if (!copies.empty()) tied->tie(kTokenWeights, ranks, copies);
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
  if (options.model.tie) model.tied = tie_embeddings(stages, placement, mesh, world);
  for (const auto& [index, stage] : stages) {
    std::map<std::string, std::string> tied;
    if (options.model.tie && index == placement.num_stages() - 1) tied[kTiedOutput] = kTokenWeights;
    model.state.add_module(*stage, modules::layouts(*stage), /*prefix=*/"", tied);
    for (const at::Tensor& parameter : stage->parameters()) model.parameters.push_back(parameter);
  }
  return model;
}

}  // namespace pipewright::examples
