#ifndef PIPEWRIGHT_DDP_LAYOUTS_H_
#define PIPEWRIGHT_DDP_LAYOUTS_H_

#include <torch/nn/module.h>

#include <map>
#include <string>

#include "pipewright/comms/layout.h"

namespace pipewright::ddp {

// How the parameters and buffers of a module are stored over the ranks of its replicate() calls, by
// name in the module: each rank has all of them. Those outside of all calls are left out. For
// checkpoints (checkpoint/torch/training_state.h).
//
//   ddp::layouts(*model).at("up.weight").layout.text()    "[64, 16] dp_replicate=4:replicate"
//
// For the thread that trains the module.
std::map<std::string, comms::LocalLayout> layouts(const torch::nn::Module& module);

}  // namespace pipewright::ddp

#endif  // PIPEWRIGHT_DDP_LAYOUTS_H_
