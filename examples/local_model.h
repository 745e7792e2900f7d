#ifndef PIPEWRIGHT_EXAMPLES_LOCAL_MODEL_H_
#define PIPEWRIGHT_EXAMPLES_LOCAL_MODEL_H_

#include <ATen/core/Tensor.h>

#include <map>
#include <memory>
#include <vector>

#include "examples/options.h"
#include "pipewright/checkpoint/torch/training_state.h"
#include "pipewright/comms/mesh.h"
#include "pipewright/executor/stage.h"
#include "pipewright/ir/placement.h"
#include "pipewright/modules/tied_parameters.h"
#include "pipewright/tp/parallelize.h"

namespace pipewright::examples {

// One rank's part of the model.
struct LocalModel {
  std::map<int, executor::LocalStage> stages;
  std::vector<at::Tensor> parameters;
  checkpoint::TrainingState state;
  std::vector<std::shared_ptr<tp::Parallelized>> split;  // one per stage, with --tp
  // With --tie, or two replicas of the model; else null.
  std::shared_ptr<modules::TiedParameters> tied;
};

// Makes this rank's stages: split over "tp", and then replicated over "dp_replicate", sharded over
// "dp_shard", or both; tied with others' as `tied` says. Collective over the mesh of `world`.
LocalModel make_local_model(const Options& options, const ir::Placement& placement,
                            comms::Mesh& mesh, comms::World& world, at::Device device);

}  // namespace pipewright::examples

#endif  // PIPEWRIGHT_EXAMPLES_LOCAL_MODEL_H_
