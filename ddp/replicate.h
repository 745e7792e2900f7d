#ifndef PIPEWRIGHT_DDP_REPLICATE_H_
#define PIPEWRIGHT_DDP_REPLICATE_H_

#include <torch/nn/module.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "pipewright/comms/mesh.h"
#include "pipewright/comms/world.h"
#include "pipewright/modules/data_parallel.h"
#include "pipewright/modules/mixed_precision.h"

namespace pipewright::ddp {

class ReplicatedUnit;

// A communication hook: the function that averages one bucket, as in PyTorch's
// DistributedDataParallel.register_comm_hook. It starts a reduction of `bucket`, a flat tensor, and
// returns a function that waits for it; once that has returned, `bucket` holds the average over the
// group on the current stream. Called on the thread of backward; it should not block.
using CommHook = std::function<std::function<void()>(at::Tensor bucket, comms::BackendPtr group)>;

// The default: an all-reduce with AVG; in fp16 as modules/reduction.h says.
CommHook all_reduce_hook();
// Communicate in float16 or bfloat16: half the bytes of float32, at the lower precision of that
// type. Like PyTorch's hooks of the same names.
CommHook fp16_compress_hook();
CommHook bf16_compress_hook();

// Data parallelism with a full copy of the parameters on every rank of a group. Gradients are
// averaged over the group while backward still runs. The counterpart of PyTorch's `replicate` and
// DistributedDataParallel, which LibTorch does not have.
//
//   auto replicated = ddp::replicate(*model, group);
//   torch::optim::AdamW optimizer(model->parameters());
//   loss_of(modules::forward(model, x)).backward();  // gradients are averaged when it returns
//   optimizer.step();
//
// The module itself does not change: it keeps the same parameters under the same names, so state
// dicts and optimizers work as before, and memory holds one copy of the parameters and one of their
// gradients. Gradients become views of buckets. A bucket is reduced by one call as soon as its last
// gradient is ready, and all ranks must run the same backwards so that buckets are reduced in the
// same order. Every accumulation into .grad counts, including that of a split backward;
// torch::autograd::grad does not accumulate and so does not count. Gradients must be dense.
//
// Call the module through modules::forward(), which broadcasts buffers, moves inputs to the
// module's device and adopts changes of the parameters: they may be cast or moved, frozen and
// unfrozen, on all ranks, between steps. A step of the executor begins in the same way. After such
// a change, the backward of a plain call throws rather than leave gradients unreduced.
//
// Errors: replicate() throws std::invalid_argument for an invalid argument. Use that this header
// forbids throws ContractError, from the call or from backward; a reduction that fails throws
// std::runtime_error. Before backward or a forward throws either of these, it fails the world
// (comms/failure/failure_domain.h), because the other ranks would wait forever; World::reset()
// repairs it.

struct Options {
  double bucket_cap_mb = 25;       // size limit of a bucket, in MiB
  double first_bucket_cap_mb = 1;  // of the first bucket: a small bucket starts sooner
  // Allows parameters without a gradient in a backward (with an executor: before a REDUCE_GRAD), on
  // some ranks or on all. Each rank must use at least one parameter. Remaining buckets are reduced
  // at the end of the backward; a parameter that no rank used keeps the .grad that it had. The
  // buckets of all parts of one module are reduced in one fixed order, the last part first. If
  // false, a backward through the outputs of modules::forward() must reach all parameters of the
  // called module, those of nested calls included: a missing gradient is an error that names the
  // parameter, on the rank that lacks it, and ends the step on the others. Must be the same in all
  // calls for parts of one module.
  bool find_unused_parameters = false;
  // A forward outside of other forwards, or a training step of the executor, broadcasts rank 0's
  // buffers to all ranks.
  bool broadcast_buffers = true;
  CommHook comm_hook = nullptr;  // null: all_reduce_hook()
  // The dtypes of these modules' forward, backward and reductions. Buckets are in the dtype of the
  // reduction, the parameters and their .grad keep theirs.
  modules::MixedPrecisionPolicy mixed_precision = {};
  // Parameters that are neither broadcast nor reduced. List them in the calls for all modules that
  // contain them.
  std::vector<at::Tensor> ignored_params = {};
  // The device to which that forward moves its inputs; nullopt: that of the parameters.
  std::optional<at::Device> device = std::nullopt;
};

// The parameters of one replicate() call. Must live as long as the module is trained. For one
// thread at a time.
class Replicated final {
 public:
  explicit Replicated(std::shared_ptr<ReplicatedUnit> unit);
  Replicated(const Replicated&) = delete;
  Replicated& operator=(const Replicated&) = delete;

  // Sets whether later backwards average gradients or only accumulate them on this rank. Applies to
  // nested calls too, unless `recurse` is false. Ignored while an executor runs the module, because
  // its program decides.
  void set_requires_gradient_sync(bool sync, bool recurse = true);
  bool requires_gradient_sync() const;

  // With mixed precision, unshard() has the registered tensors hold copies in param_dtype, and
  // reshard() the parameters again, also in nested calls; a forward and the end of backward do so
  // themselves. reshard() throws ContractError if a copy was written to.
  void unshard();
  void reshard();

  // The interface for the executor: before_backward() says which backward averages gradients,
  // reduce_grad() starts the remaining reductions, wait_reduce() waits. Includes nested calls.
  // While the returned object exists, backwards that the executor does not run only accumulate.
  std::shared_ptr<modules::DataParallel> data_parallel();

  // The size of the buckets in bytes, without those of nested calls.
  size_t bucket_bytes() const;
  // The parameter names of each bucket, in the order of reduction.
  std::vector<std::vector<std::string>> buckets() const;

 private:
  friend class NoSync;
  const std::shared_ptr<ReplicatedUnit> unit_;
};

// Replicates the parameters and buffers of `modules` that no earlier call has replicated. Calls go
// bottom-up: a call for a layer creates separate buckets for it, which are reduced together with
// those of the call for the whole module. Gradients are averaged as long as the returned object or
// its data_parallel() exists.
//
// Collective over the group and blocking: compares options, shapes and dtypes, and broadcasts rank
// 0's values. If ranks differ, throws std::invalid_argument on every rank, naming the parameter or
// option. Also throws std::invalid_argument if parameters are on several devices, managed by
// another wrapper, or those of an Embedding with sparse gradients.
[[nodiscard]] std::shared_ptr<Replicated> replicate(const std::vector<torch::nn::Module*>& modules,
                                                    comms::BackendPtr group, Options options = {});

[[nodiscard]] inline std::shared_ptr<Replicated> replicate(torch::nn::Module& module,
                                                           comms::BackendPtr group,
                                                           Options options = {}) {
  return replicate(std::vector{&module}, std::move(group), std::move(options));
}

// Over the group along some dimensions of a mesh; fully_shard takes the same arguments.
inline std::shared_ptr<Replicated> replicate(torch::nn::Module& module, comms::Mesh& mesh,
                                             const std::vector<std::string>& dims,
                                             Options options = {}) {
  return replicate(module, mesh.group(dims), std::move(options));
}

// A scope in which backwards only accumulate gradients, also those of nested calls, like PyTorch's
// no_sync().
//
//   {
//     const ddp::NoSync no_sync(*replicated);
//     loss_of_first_microbatch.backward();
//   }
//   loss_of_last_microbatch.backward();  // averages the sum of both
class NoSync {
 public:
  explicit NoSync(Replicated& replicated);
  ~NoSync();
  NoSync(const NoSync&) = delete;
  NoSync& operator=(const NoSync&) = delete;

 private:
  ReplicatedUnit& unit_;
};

}  // namespace pipewright::ddp

#endif  // PIPEWRIGHT_DDP_REPLICATE_H_
