#ifndef PIPEWRIGHT_MODULES_CLIP_GRAD_NORM_H_
#define PIPEWRIGHT_MODULES_CLIP_GRAD_NORM_H_

#include <ATen/core/Tensor.h>

#include <vector>

#include "pipewright/comms/world.h"

namespace pipewright::modules {

// Parameters of this rank whose gradients `copies` ranks of a group have alike.
struct GradsToClip {
  std::vector<at::Tensor> parameters;
  int copies = 1;
};

// Sorts parameters by how many ranks have each of their elements, replicas included, as layout_of()
// says (distribution.h). For tensor parallelism, where some parameters are split and others are
// copies. The group then has all ranks that train the model:
//
//   const std::vector<std::string> all = {"pp", "dp_replicate", "dp_shard", "tp"};
//   clip_grad_norm_(grads_to_clip(model->parameters()), *mesh.group(all), 1.0);
std::vector<GradsToClip> grads_to_clip(const std::vector<at::Tensor>& parameters);

// The total norm of the gradients, over all parameters and ranks of `group`, a scalar tensor, as
// clip_grad_norm_() returns it: what PyTorch's get_total_norm is to its clip_grad_norm_. Collective
// over `group`. Throws std::invalid_argument if `norm_type` is not positive.
at::Tensor total_grad_norm(const std::vector<GradsToClip>& grads, c10d::Backend& group,
                           double norm_type = 2);

// torch::nn::utils::clip_grad_norm_ for parameters that are distributed over the ranks of `group`,
// as shards or as stages of a pipeline: scales their gradients in place so that their total norm,
// over all parameters and ranks, is at most `max_norm`. Returns the norm before clipping, a scalar
// tensor. `norm_type` is a positive number or infinity. The group consists of the dimensions of the
// mesh over which parameters differ; those with replicas are left out:
//
//   clip_grad_norm_(parameters, *mesh.group({"pp", "dp_shard"}), 1.0);  // replicas: "dp_replicate"
//   // Some stages are sharded over "dp", others replicated:
//   clip_grad_norm_({{sharded}, {replicated, mesh.size("dp")}}, *mesh.group({"pp", "dp"}), 1.0);
//
// Collective over `group`: one all-reduce, also on ranks without parameters. Parameters without a
// gradient are ignored, and a parameter that is listed twice counts once. Does not wait for the
// device.
//
// Throws std::invalid_argument if `max_norm` is negative or `norm_type` is not positive.
at::Tensor clip_grad_norm_(const std::vector<GradsToClip>& grads, c10d::Backend& group,
                           double max_norm, double norm_type = 2);
at::Tensor clip_grad_norm_(const std::vector<at::Tensor>& parameters, c10d::Backend& group,
                           double max_norm, double norm_type = 2);

}  // namespace pipewright::modules

#endif  // PIPEWRIGHT_MODULES_CLIP_GRAD_NORM_H_
