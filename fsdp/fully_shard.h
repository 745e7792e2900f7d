#ifndef PIPEWRIGHT_FSDP_FULLY_SHARD_H_
#define PIPEWRIGHT_FSDP_FULLY_SHARD_H_

#include <c10/core/Event.h>
#include <torch/nn/module.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "pipewright/comms/mesh.h"
#include "pipewright/comms/world.h"
#include "pipewright/modules/data_parallel.h"
#include "pipewright/modules/forward.h"
#include "pipewright/modules/mixed_precision.h"

// Fully sharded data parallelism (ZeRO-3) for LibTorch, with the names and semantics of PyTorch's
// fully_shard (FSDP2; Zhao et al., "PyTorch FSDP", 2023). Each rank stores a shard of every
// parameter, of its gradient and of the optimizer's state. The full parameters of a layer exist
// only while it computes: they are all-gathered before its forward and its backward, and its
// gradients are reduce-scattered after its backward.
//
//   std::vector<std::shared_ptr<fsdp::Sharded>> units;
//   for (const auto& block : model->blocks) units.push_back(fsdp::fully_shard(*block, group));
//   units.push_back(fsdp::fully_shard(*model, group));     // what is left, as the root unit
//   torch::optim::AdamW optimizer(model->parameters());    // before or after: it steps the shards
//   modules::forward(model, x).sum().backward();           // .grad: averaged, and sharded
//   optimizer.step();
//
// What differs from PyTorch:
// - LibTorch's modules have no hooks. Call sharded modules through modules::forward() or call(),
//   also inside the model's own forward: `x = modules::forward(block, x)`. For modules that are not
//   sharded these are plain calls. A sharded parameter that is read outside of them is an error
//   that names it (modules/part_guard.h says what is noticed).
// - The registered parameter is the shard, a plain tensor, not a DTensor. Inside forward and
//   backward the same tensor holds the full parameter.
// - A module may write in place to its inputs, and its caller to what it returns, as without
//   fully_shard. A result in the memory of a parameter, such as the parameter itself or a view of
//   it, is copied, because that memory is freed; gradients flow through the copy.
// - zero_grad() drops gradients that are accumulated and not reduced yet; PyTorch keeps them.
// - Instead of set_custom_all_gather() and set_custom_reduce_scatter(), pass as the group a
//   c10d::Backend with its own allgather_into_tensor_coalesced(), reduce_scatter_tensor_coalesced()
//   and allocateTensor().
// - Keep what fully_shard returns: the module is sharded as long as it exists.
// - Modules may be cast, moved and loaded, and parameters frozen and unfrozen, also after they are
//   sharded: between steps, on all ranks, while they are sharded. With accumulated gradients that
//   have not been reduced it is an error, as is a cast of a unit that is unsharded.
//
// All ranks must call the same units in the same order, and backward must reach the same calls on
// all ranks, because each all-gather and reduce-scatter is a collective. Ranks may use different
// parameters of a unit, and may keep or drop the outputs of a forward that has no backward. If a
// forward throws on one rank after it has called all units that the other ranks call, all may skip
// its backward and go on with the next forward.
//
// After a failed step, on any rank, all ranks call World::reset() and may then go on: the next call
// of forward(), unshard() or reshard() drops what the step left. Gradients may contain part of it.
//
// A unit is reduced whether or not this rank has gradients for it: missing ones count as zeros, and
// a parameter that no rank used keeps the .grad that it had. PyTorch posts no reduction then, which
// deadlocks if ranks differ.
//
// Errors: std::invalid_argument for an invalid argument, ContractError (ir/errors.h) if a module or
// parameter is used in a way that this header forbids, std::runtime_error for a failed collective.
// Messages name the unit, by its path in the model, and the parameter.

namespace pipewright::fsdp {

class ShardedUnit;

// What happens to a unit's full parameters between its forward and its backward.
class ReshardAfterForward {
 public:
  // Default: true, but false for the root unit, whose parameters backward needs first.
  constexpr ReshardAfterForward() = default;
  // true: freed, and all-gathered again for backward. false: kept until backward.
  // NOLINTNEXTLINE(google-explicit-constructor)
  constexpr ReshardAfterForward(bool reshard) : ranks_(reshard ? kAll : 1) {}
  // Resharded over this many adjacent ranks, which must divide the size of the group: uses more
  // memory than true, but the all-gather for backward stays within those ranks. Needs a mesh.
  template <typename Int>
  requires(std::is_integral_v<Int> && !std::is_same_v<Int, bool>)
      // NOLINTNEXTLINE(google-explicit-constructor)
      constexpr ReshardAfterForward(Int ranks)
      : ranks_(static_cast<int>(ranks)) {}

  // Over how many of `size` ranks; 1 keeps the parameters.
  int ranks(bool is_root, int size) const {
    if (ranks_ == kDefault) return is_root ? 1 : size;
    return ranks_ == kAll ? size : ranks_;
  }

 private:
  static constexpr int kDefault = -1, kAll = 0;
  int ranks_ = kDefault;
};

// When backward prefetches the next unit, that is, the unit whose forward ended just before the
// current unit's. kPre (PyTorch's BACKWARD_PRE): when the current unit's backward begins. kPost
// (BACKWARD_POST): when it has ended, with less memory and less overlap. kNone: never.
enum class BackwardPrefetch { kNone, kPre, kPost };

// Stores shards, their gradients and so the optimizer's state in host memory: PyTorch's
// CPUOffloadPolicy. Each gather copies the shards to the device, each reduction copies its result
// to the host. Clipping and the optimizer run on the host.
// Parameters on the meta device must be allocated on the host; the device to compute on is then the
// one that the group is bound to.
struct CPUOffloadPolicy {
  // Page-locked host memory: copies do not block the host, which waits for them at the end of
  // backward. Without effect on modules that compute on the CPU.
  bool pin_memory = true;
};

struct Options {
  ReshardAfterForward reshard_after_forward = {};
  // The root unit's value applies to all units.
  BackwardPrefetch backward_prefetch = BackwardPrefetch::kPre;
  // Submodules for which it returns true become units of their own, as if fully_shard() had been
  // called for them before, with the same options; null: none. See wrap_types().
  std::function<bool(const torch::nn::Module&)> auto_wrap_policy = nullptr;
  // The dimension to shard a parameter along; null shards all along dimension 0. Other dimensions
  // must be divisible by the number of ranks, and cost one more copy per gather and reduction.
  std::function<int64_t(const at::Tensor& parameter)> shard_placement_fn = nullptr;
  // The dtypes to compute and communicate in.
  modules::MixedPrecisionPolicy mixed_precision = {};
  // Stores shards on the host; nullopt: on the device to compute on, that of the parameters.
  std::optional<CPUOffloadPolicy> offload_policy = std::nullopt;
  // Parameters that are neither sharded nor reduced.
  std::vector<at::Tensor> ignored_params = {};
  // Broadcast parameters and buffers from rank 0. If false, all ranks must have equal values.
  bool sync_module_states = true;
  // The device to which forward moves its inputs; nullopt: that of the parameters.
  std::optional<at::Device> device = std::nullopt;
};

// For Options::auto_wrap_policy: modules of these types (PyTorch's ModuleWrapPolicy).
//
//   auto unit = fully_shard(*model, group, {.auto_wrap_policy = wrap_types<BlockImpl>()});
template <typename... Modules>
std::function<bool(const torch::nn::Module&)> wrap_types() {
  return [](const torch::nn::Module& module) {
    return ((dynamic_cast<const Modules*>(&module) != nullptr) || ...);
  };
}

// The unit that one call of fully_shard returns: a group of parameters that are gathered by one
// all-gather and reduced by one reduce-scatter. The module stays sharded as long as this object
// exists, and must be called only through modules::forward() or call(). For one thread at a time,
// besides autograd's threads during backward.
class Sharded final {
 public:
  explicit Sharded(std::shared_ptr<ShardedUnit> unit);
  Sharded(const Sharded&) = delete;
  Sharded& operator=(const Sharded&) = delete;

  // All-gathers the parameters of this unit, but not of units nested in it. A no-op if they are
  // gathered.
  void unshard() {
    unshard_async();
    wait_unshard();
  }
  // Posts the all-gather and returns. The unit's next forward or wait_unshard() waits for it.
  void unshard_async();
  void wait_unshard();
  // Frees the full parameters. A backward through results computed with them still works. Needed
  // before optimizer.step() only if a forward kept the parameters and no backward follows. A
  // forward with grad mode off reshards by itself.
  void reshard();
  bool is_unsharded() const;

  // The next three apply to this unit and, unless `recurse` is false, to all units nested in it.
  // Replaces Options::reshard_after_forward.
  void set_reshard_after_forward(bool reshard, bool recurse = true);
  // Whether backward frees the full parameters; true by default.
  void set_reshard_after_backward(bool reshard, bool recurse = true);
  // Whether the following backwards reduce gradients; true by default. If false they accumulate
  // full gradients on this rank (gradient accumulation without communication).
  //
  // zero_grad() drops them too, although they are not in .grad. For that purpose a parameter that
  // has such gradients also has a .grad between two backwards, of zeros if there was none. The next
  // backward throws ContractError if anything but zeros was written to it. The same holds for what
  // the next setter and set_is_last_backward() keep out of .grad.
  void set_requires_gradient_sync(bool sync, bool recurse = true);
  // With replicas (HSDP): whether the following backwards all-reduce the shards of gradients over
  // them; true by default, and set by set_requires_gradient_sync() too. If false they are only
  // reduce-scattered, and added up until a backward that all-reduces; .grad does not change.
  void set_requires_all_reduce(bool all_reduce, bool recurse = true);
  // Called with this unit's reduced gradients, flat and in the dtype of the reduction, before the
  // final division: after the all-reduce over replicas, or the reduce-scatter if there are none.
  // May change them in place, for example by an all-reduce over another group. On a device with
  // replicas, the current stream is then that of the all-reduce. Of this unit only.
  void set_all_reduce_hook(std::function<void(const at::Tensor&)> hook);
  // Affects the root unit only; true by default. If false, backward returns while reductions are
  // pending, and .grad is not complete until a later backward with true has run.
  void set_is_last_backward(bool last);
  // Whether backward gathers this unit; true by default. Set it to false for parameters that
  // backward does not read, such as those of embeddings.
  void set_unshard_in_backward(bool unshard);
  // Whether gathers of this unit and of those nested in it are posted on the current stream, false
  // by default. They then wait for computation issued before them, but need no memory of another
  // stream. Without effect on devices without streams. PyTorch's _set_unshard_async_op.
  void set_unshard_async_op(bool async_op);
  // Of the root: the gathers of the next forward wait for `event` instead of all that the current
  // stream has been given. Record it after the optimizer's step, which writes the shards. For one
  // forward; on devices with streams.
  void set_post_optim_event(std::shared_ptr<c10::Event> event);
  // Units to gather ahead when this unit's forward or backward begins, after its own gather. The
  // forward list replaces the default, which is the unit that began next in the last forward; the
  // backward list replaces Options::backward_prefetch for this unit.
  void set_modules_to_forward_prefetch(const std::vector<Sharded*>& units);
  void set_modules_to_backward_prefetch(const std::vector<Sharded*>& units);
  // Divides the sum of gradients by `factor` instead of the number of ranks, replicas included. Of
  // this unit only.
  // Throws std::invalid_argument if it is not positive.
  void set_gradient_divide_factor(double factor);
  // Reduces with SUM and divides afterwards, for backends without a usable AVG. Of this unit only.
  void set_force_sum_reduction_for_comms(bool force);
  // Whether gathers write the full parameters to memory that the group's backend allocates
  // (c10d::Backend::allocateTensor), and reductions read and write gradients there; false by
  // default, and without effect if the backend cannot. NCCL needs it to communicate without copies
  // of its own. Of this unit only.
  void set_allocate_memory_from_process_group_for_comm(bool enable);

  // This unit and those nested in it as a pipeline stage for executor::Executor. While the returned
  // object exists, the executor's program decides: UNSHARD and RESHARD replace
  // reshard_after_forward, backward gathers nothing, REDUCE_GRAD reduces, and split backwards (I
  // and W) are supported. Units are reduced during the last backward before a REDUCE_GRAD as they
  // become ready; a unit with checkpointed parts in its forward, or that is called several times of
  // which one is in a checkpointed part, only after that backward. Throws ContractError if this is
  // not the root unit.
  std::shared_ptr<modules::DataParallel> data_parallel();

  // The names of the unit's parameters in the wrapped module, in the order of its buffers. With
  // several modules, names begin with the index of the module: "1.weight".
  std::vector<std::string> parameter_names() const;

  // Bytes of parameters and gradients that this rank has copied so far, without copies inside
  // backends.
  int64_t bytes_copied() const;

  // What it consists of, for fsdp's own files.
  ShardedUnit& unit() const { return *unit_; }

 private:
  const std::shared_ptr<ShardedUnit> unit_;
};

// Shards the parameters of `modules` that no earlier call has sharded, as one unit. Call it
// bottom-up: layers first, the whole model last; the units of the layers are then nested in that of
// the model, the root. Collective over `group`: all ranks compare shapes and options.
//
// Parameters may be on the meta device (modules/meta.h); their first gather throws ContractError if
// they still are. Frozen parameters may have other dtypes than the trainable ones.
//
// Throws std::invalid_argument, naming the parameter, for a module that is sharded already, a
// scalar, an Embedding with sparse gradients, trainable parameters of different dtypes, parameters
// of different devices, a tensor that also belongs to another unit or wrapper, and, on every rank,
// if ranks differ.
[[nodiscard]] std::shared_ptr<Sharded> fully_shard(const std::vector<torch::nn::Module*>& modules,
                                                   comms::BackendPtr group, Options options = {});
[[nodiscard]] std::shared_ptr<Sharded> fully_shard(torch::nn::Module& module,
                                                   comms::BackendPtr group, Options options = {});
// Shards over one dimension of a mesh. With two dimensions, {replicate, shard}, parameters are
// sharded over the second one and each shard is replicated over the first (hybrid sharding, HSDP):
// gathers stay within the second, and gradients are reduce-scattered over it and all-reduced over
// the first. Required if reshard_after_forward is a number of ranks: the mesh creates the smaller
// groups. Throws std::invalid_argument for another number of dimensions.
[[nodiscard]] std::shared_ptr<Sharded> fully_shard(const std::vector<torch::nn::Module*>& modules,
                                                   comms::Mesh& mesh,
                                                   const std::vector<std::string>& dims,
                                                   Options options = {});
[[nodiscard]] std::shared_ptr<Sharded> fully_shard(torch::nn::Module& module, comms::Mesh& mesh,
                                                   const std::vector<std::string>& dims,
                                                   Options options = {});

// Makes root units that are called one after another, such as the stages of one rank, post their
// gathers on one stream. Call it before their first forward. Throws ContractError for a unit that
// is nested in another.
void share_comm_ctx(const std::vector<Sharded*>& units);

// How sharded modules are called (modules/forward.h).
using modules::call;
using modules::forward;

}  // namespace pipewright::fsdp

#endif  // PIPEWRIGHT_FSDP_FULLY_SHARD_H_
