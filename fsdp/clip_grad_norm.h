#ifndef PIPEWRIGHT_FSDP_CLIP_GRAD_NORM_H_
#define PIPEWRIGHT_FSDP_CLIP_GRAD_NORM_H_

#include <ATen/core/Tensor.h>

#include <vector>

#include "pipewright/comms/world.h"

namespace pipewright::fsdp {

// torch::nn::utils::clip_grad_norm_ for parameters that are sharded over a group: scales their
// gradients in place so that the norm of all of them together, over all ranks, is at most
// `max_norm`, and returns the norm that they had, a scalar. `norm_type` is a positive number, or
// infinity. One all-reduce. Parameters without a gradient count nothing; a tied one is to be there
// once. Throws std::invalid_argument for other arguments.
at::Tensor clip_grad_norm_(const std::vector<at::Tensor>& parameters, c10d::Backend& group,
                           double max_norm, double norm_type = 2);

}  // namespace pipewright::fsdp

#endif  // PIPEWRIGHT_FSDP_CLIP_GRAD_NORM_H_
