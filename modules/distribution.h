#ifndef PIPEWRIGHT_MODULES_DISTRIBUTION_H_
#define PIPEWRIGHT_MODULES_DISTRIBUTION_H_

#include <torch/nn/module.h>

#include <map>
#include <memory>
#include <string>

#include "pipewright/comms/world.h"
#include "pipewright/layout/layout.h"

// How the parameters and buffers of wrapped modules are distributed over ranks, by all wrappers
// together, and their whole values. What PyTorch asks of a DTensor: its placements, full_tensor()
// and distribute_tensor().
//
//   const auto split = tp::parallelize(*model, {{"up", tp::colwise_parallel()}}, mesh, "tp");
//   const auto sharded = fsdp::fully_shard(*model, mesh, {"dp"});  // shards what tp has split
//   layout_of(model->up->weight).layout.text()
//       "[64, 16] dp_replicate=1:replicate dp_shard=2:strided_shard(0,2) tp=2:shard(0)"
//   full_tensor(model->up->weight)      [64, 16], on all ranks
//
// The mesh of such a layout has the dimensions of the wrappers, the last one first: "dp_replicate"
// and "dp_shard" of fully_shard, "dp_replicate" of replicate, and the one that parallelize was
// called with. A parameter is distributed as long as its wrappers exist; otherwise it is whole.
//
// `parameter` is the tensor that the module has registered, or a buffer. For the thread that trains
// the module, between steps: a parameter that fully_shard has gathered is resharded first.

namespace pipewright::modules {

// The mesh of a tensor that nothing distributes has no dimensions.
layout::LocalLayout layout_of(const at::Tensor& parameter);
// The layouts of all parameters and buffers, by name in the module: what a checkpoint needs
// (checkpoint/torch/training_state.h).
std::map<std::string, layout::LocalLayout> layouts(const torch::nn::Module& module);

// The whole parameter, a new tensor on the device that stores this rank's part. Collective over the
// ranks that have parts of it; in which order tensors are asked for must be the same on all of
// them. Throws ContractError if the parameter is not this rank's part, or on the meta device.
at::Tensor full_tensor(const at::Tensor& parameter);
// The whole of `part`, which is distributed as the parameter is: its gradient, or optimizer state.
at::Tensor full_tensor(const at::Tensor& parameter, const at::Tensor& part);
// Replaces the values of the parameter by this rank's part of `whole`. Local. Throws
// std::invalid_argument if the shape is another, ContractError for a parameter on the meta device.
void set_full_tensor(const at::Tensor& parameter, const at::Tensor& whole);

// The rest is for wrappers.

// What has distributed a tensor, and may hold more than this rank's part of it for a while.
class Distributor {
 public:
  virtual ~Distributor() = default;
  // Makes its tensors hold this rank's parts only. Called before values are read or written.
  virtual void store_parts() {}
};

// How one wrapper distributes a tensor, which may already be a part of another one.
struct Distribution {
  layout::LocalLayout layout;  // over the ranks of the wrapper; shards at most one dimension
  c10d::Backend* group;  // the ranks over which it is sharded, by chunks; belongs to the owner
  std::weak_ptr<Distributor> owner;
};

// Adds `distribution` to those that the tensor has, whose parts it distributes further; or replaces
// one with a mesh dimension of the same name. Ends with its owner. Thread-safe.
void distribute(const at::Tensor& tensor, Distribution distribution);
// Whether the tensor is distributed over a mesh dimension of that name.
bool is_distributed_over(const at::Tensor& tensor, const std::string& dim);

}  // namespace pipewright::modules

#endif  // PIPEWRIGHT_MODULES_DISTRIBUTION_H_
