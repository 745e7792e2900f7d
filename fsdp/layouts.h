#ifndef PIPEWRIGHT_FSDP_LAYOUTS_H_
#define PIPEWRIGHT_FSDP_LAYOUTS_H_

#include <torch/nn/module.h>

#include <map>
#include <string>

#include "pipewright/comms/layout.h"

namespace pipewright::fsdp {

// How the parameters and buffers of a module are stored over the ranks of its units, by name in the
// module: parameters are sharded, over a mesh {"dp_replicate", "dp_shard"}; buffers and ignored
// parameters are replicated. Those outside of all units are left out. For checkpoints
// (checkpoint/torch/training_state.h).
//
//   fsdp::layouts(*model).at("block0.up.weight").layout.text()
//       "[64, 16] dp_replicate=1:replicate dp_shard=4:shard(0)"
//
// For the thread that trains the module.
std::map<std::string, comms::LocalLayout> layouts(const torch::nn::Module& module);

}  // namespace pipewright::fsdp

#endif  // PIPEWRIGHT_FSDP_LAYOUTS_H_
