#ifndef PIPEWRIGHT_FSDP_CLIP_GRAD_NORM_H_
#define PIPEWRIGHT_FSDP_CLIP_GRAD_NORM_H_

#include <ATen/core/Tensor.h>

#include <vector>

#include "pipewright/comms/world.h"

namespace pipewright::fsdp {

// torch::nn::utils::clip_grad_norm_ for parameters that are sharded over a group: scales their
// gradients in place so that their total norm, over all parameters and ranks, is at most
// `max_norm`. Returns the norm before clipping, a scalar tensor. `norm_type` is a positive number
// or infinity. Collective over `group`: one all-reduce. Parameters without a gradient are ignored;
// list tied parameters once. Does not wait for the device.
//
// Throws std::invalid_argument if `parameters` is empty, `max_norm` is negative or `norm_type` is
// not positive.
at::Tensor clip_grad_norm_(const std::vector<at::Tensor>& parameters, c10d::Backend& group,
                           double max_norm, double norm_type = 2);

}  // namespace pipewright::fsdp

#endif  // PIPEWRIGHT_FSDP_CLIP_GRAD_NORM_H_
