#ifndef PIPEWRIGHT_DDP_REPLICATE_H_
#define PIPEWRIGHT_DDP_REPLICATE_H_

#include <torch/nn/module.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "pipewright/comms/mesh.h"
#include "pipewright/comms/world.h"
#include "pipewright/ddp/comm_hooks.h"
#include "pipewright/modules/data_parallel.h"

// A module whose parameters are the same on every rank of a group: LibTorch has no
// DistributedDataParallel. Gradients are averaged over the group while backward still runs.
//
//   auto replicated = ddp::replicate(*model, group);
//   torch::optim::AdamW optimizer(model->parameters());
//   loss.backward();        // gradients are averaged when it returns
//   optimizer.step();
//
// The module stays as it is: the same parameters under the same names, so its state dict and its
// optimizer know nothing of this, and memory holds one copy of them and one of their gradients.
// Gradients become views of buckets, each of which is reduced by one call as soon as its last
// gradient is ready; all ranks must run the same backwards, so that buckets come in the same order.
// What adds to .grad makes a gradient ready, a split backward too; torch::autograd::grad, which
// adds to none, does not. A module is cast or moved before it is replicated, gradients are dense.

namespace pipewright::ddp {

struct Options {
  double bucket_cap_mb = 25;       // MiB
  double first_bucket_cap_mb = 1;  // of the bucket that is ready first: the sooner it starts
  // A parameter may have no gradient in a backward (with an executor: before a REDUCE_GRAD), on
  // some ranks or on all, but not all of them on one: then those that are left are reduced at its
  // end, and one that no rank used keeps what it had. Otherwise it is an error that names it. The
  // same in all calls for parts of a module; they are then reduced in one order, the last first.
  // Without it all ranks must use the same calls: one that skips a whole part is only known to the
  // others because they wait for it.
  bool find_unused_parameters = false;
  // forward_begins(), or a step of the executor, gives all ranks rank 0's buffers.
  bool broadcast_buffers = true;
  CommHook comm_hook = nullptr;  // null: an all-reduce
  // Where forward_begins() puts inputs; null: where the parameters are.
  std::optional<at::Device> device = std::nullopt;
};

// One call's parameters. Made by replicate(); lives as long as the module is trained. For one
// thread at a time.
class Replicated {
 public:
  virtual ~Replicated() = default;

  // Whether the backwards to come average gradients, or only add them up here (an executor decides
  // that by itself); of nested calls too,
  // unless `recurse` is false.
  virtual void set_requires_gradient_sync(bool sync, bool recurse = true) = 0;
  virtual bool requires_gradient_sync() const = 0;
  // Accepted for what is written for fully_shard: a backward that averages is done when it returns.
  void set_is_last_backward(bool /*last*/) {}
  // Likewise: parameters are always whole, there is nothing to prefetch.
  void set_modules_to_forward_prefetch(const std::vector<Replicated*>& /*modules*/) {}
  void set_modules_to_backward_prefetch(const std::vector<Replicated*>& /*modules*/) {}

  // To be called before a forward of a module with buffers, as its forward cannot be hooked.
  // Returns the inputs on the module's device. Throws std::logic_error if the module was cast.
  virtual std::vector<at::Tensor> forward_begins(std::vector<at::Tensor> inputs = {}) = 0;

  // For the executor: before_backward says which backward averages, reduce_grad starts what is
  // left, wait_reduce waits. Nested calls are part of it. While it lives, backwards that the
  // executor does not run only add up. With ranks as threads of one GPU: one REDUCE_GRAD a step.
  virtual std::shared_ptr<modules::DataParallel> data_parallel() = 0;

  // Bytes of the buckets, those of nested calls left out.
  virtual size_t bucket_bytes() const = 0;
  // The names of the parameters of each bucket, in the order in which they are reduced.
  virtual std::vector<std::vector<std::string>> buckets() const = 0;

 protected:
  friend class NoSync;
  // How many NoSyncs hold this call and nested ones.
  virtual void hold_sync(int change) = 0;
};

// Replicates the parameters and buffers of `modules` that no earlier call has taken: bottom-up, a
// call for a layer gives it buckets of its own, which are reduced together with those of the call
// for the whole. Collective over the group: shapes are compared, and rank 0's values are given to
// all. Throws std::invalid_argument that names the parameter or option, on every rank, where ranks
// differ. Gradients are averaged as long as what it returns, or the data_parallel() of that, lives.
[[nodiscard]] std::shared_ptr<Replicated> replicate(const std::vector<torch::nn::Module*>& modules,
                                                    comms::BackendPtr group, Options options = {});

[[nodiscard]] inline std::shared_ptr<Replicated> replicate(torch::nn::Module& module,
                                                           comms::BackendPtr group,
                                                           Options options = {}) {
  return replicate(std::vector{&module}, std::move(group), std::move(options));
}

// Over all ranks of a mesh, or of some of its dimensions: fully_shard takes the same.
inline std::shared_ptr<Replicated> replicate(torch::nn::Module& module, comms::Mesh& mesh,
                                             const std::vector<std::string>& dims,
                                             Options options = {}) {
  return replicate(module, mesh.group(dims), std::move(options));
}

// While it lives, backwards only add up, those of nested calls too.
class NoSync {
 public:
  explicit NoSync(Replicated& replicated) : replicated_(replicated) { replicated_.hold_sync(1); }
  ~NoSync() { replicated_.hold_sync(-1); }
  NoSync(const NoSync&) = delete;
  NoSync& operator=(const NoSync&) = delete;

 private:
  Replicated& replicated_;
};

}  // namespace pipewright::ddp

#endif  // PIPEWRIGHT_DDP_REPLICATE_H_
