#ifndef PIPEWRIGHT_CHECKPOINT_TORCH_TRAINING_STATE_H_
#define PIPEWRIGHT_CHECKPOINT_TORCH_TRAINING_STATE_H_

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "pipewright/checkpoint/load.h"
#include "pipewright/checkpoint/save.h"
#include "pipewright/layout/layout.h"

// What a rank of a training saves and loads: modules, plain or wrapped, and their optimizer.
//
//   checkpoint::TrainingState state;
//   for (const auto& stage : stages) state.add_module(*stage, modules::layouts(*stage));
//   state.set_optimizer(optimizer);
//
//   comms::StoreExchange exchange(world, "checkpoint");
//   if (auto latest = open_latest_on_all("ckpt", world.rank(), std::ref(exchange), warn))
//     state.load(latest->checkpoint, std::ref(exchange));
//   Saver saver({.folder = "ckpt", .rank = world.rank()}, std::ref(exchange));
//   StateSnapshot taken = state.snapshot();
//   taken.snapshot.step = step;
//   saver.save(taken.snapshot);  // or beside training: copied_snapshot() and AsyncSaver
//
// Tensors have the names of the whole model, so the parts that the ranks of one world save can be
// loaded by the ranks of any other. The state of the optimizer is called as PyTorch calls it in a
// distributed checkpoint: `optim.state.NAME.exp_avg`, and options of its parameter groups, in the
// manifest, `optim.param_groups.0.lr`.

namespace pipewright::checkpoint {

// A snapshot, and the memory that its parts refer to. The memory of a tensor on the CPU is that of
// the tensor itself: it must not change before the snapshot is saved.
struct StateSnapshot {
  Snapshot snapshot;
  std::vector<at::Tensor> memory;
  std::vector<std::pair<at::Tensor, at::Tensor>> uncopied;  // to, from: what copy() copies
  std::optional<c10::Event> copied = {};                    // what it waits for on a device

  // Completes a deferred_snapshot(); nothing is left to do for others, nor a second time. Any
  // thread.
  void copy();
};

// One rank's. It refers to modules and optimizer, which must outlive it. All functions are for the
// thread that trains, between steps, while modules are sharded.
class TrainingState {
 public:
  // Adds the parameters and buffers of a module, whose names in the whole model are `prefix`
  // followed by those in the module. `layouts` come from modules::layouts()
  // (modules/distribution.h), and are looked up by the names in the module; a tensor that is not in
  // them is not distributed: it is whole, and on this rank only. `tied` maps a name in the module
  // to the one in the whole model, for copies of tied parameters (modules/tied_parameters.h), such
  // as {"output.weight", "tokens.weight"}. A checkpoint has them once, and all of them are loaded.
  // One tensor under two names is saved under both, as PyTorch's state_dict() has it, unless `tied`
  // maps one to the other.
  //
  // Throws std::invalid_argument if a name is added twice, unless for tied copies, or tied without
  // being in the module; if a tensor has a type that checkpoints cannot store, or its name begins
  // with `optim.`. Throws ContractError if its shape is not that of the rank's part, because the
  // module is not sharded now.
  void add_module(const torch::nn::Module& module,
                  const std::map<std::string, layout::LocalLayout>& layouts = {},
                  const std::string& prefix = "",
                  const std::map<std::string, std::string>& tied = {});

  // Sets the optimizer: AdamW, Adam or SGD, with the same parameter groups on all ranks. Its
  // parameters are those of modules added before; throws std::invalid_argument if not.
  void set_optimizer(torch::optim::Optimizer& optimizer);

  // Of replicated tensors, the rank with the lowest coordinates has the parts. The caller adds the
  // step and what else it saves. Throws std::invalid_argument if the optimizer has counted more
  // than 2^24 steps, which its `step`, a float as in PyTorch, cannot store.
  StateSnapshot snapshot() const;
  // The same with memory of its own, so that training can go on while it is saved
  // (AsyncSaver). `reused`, an earlier result that is saved by now, lends its memory.
  StateSnapshot copied_snapshot(StateSnapshot reused = {}) const;
  // The same, at once: copy() then copies the parameters on the CPU and their optimizer state,
  // which must not change before it returns. Forward and backward change buffers only, so another
  // thread can copy during the next step, up to its update (AsyncSaver::wait_copied()). From a
  // device, a stream beside the current one copies into page-locked memory, and copy() waits for
  // that: the host does not wait here, and the device computes meanwhile.
  StateSnapshot deferred_snapshot(StateSnapshot reused = {}) const;

  // Collective over the ranks that share `exchange`. Replaces the values of parameters and buffers,
  // the optimizer's state and the options of its parameter groups. Without an optimizer, what a
  // checkpoint has of one is ignored. A checkpoint of weights alone is for load_weights().
  // Throws as load() does (load.h), on all ranks, and then nothing has changed. That the optimizer
  // has no state at all of a parameter is right if the checkpoint has a manifest, and was so when
  // it was saved.
  void load(const StoredCheckpoint& checkpoint, const Exchange& exchange);
  // The same, without the optimizer: its state and options stay as they are.
  void load_weights(const StoredCheckpoint& checkpoint, const Exchange& exchange) const;

 private:
  struct Entry {
    std::string name;
    at::Tensor tensor;  // this rank's part
    layout::LocalLayout where;
    bool is_buffer = false;
  };
  enum class Copy { kNever, kAtOnce, kDeferred };

  // A copy has the memory of `reused` where that fits.
  StateSnapshot take(Copy how, const StateSnapshot& reused) const;
  void add_optimizer(Copy how, const StateSnapshot& reused, StateSnapshot& result) const;
  static void add_parts(const Entry& entry, Copy how, const StateSnapshot& reused,
                        StateSnapshot& snapshot);
  const Entry& entry_of(const at::Tensor& parameter) const;

  std::vector<Entry> entries_;
  std::map<std::string, size_t> by_name_;               // the first of each name
  std::map<const c10::TensorImpl*, size_t> by_tensor_;  // the first name of each tensor
  torch::optim::Optimizer* optimizer_ = nullptr;
};

}  // namespace pipewright::checkpoint

#endif  // PIPEWRIGHT_CHECKPOINT_TORCH_TRAINING_STATE_H_
