#ifndef PIPEWRIGHT_FSDP_CALL_TRACKER_H_
#define PIPEWRIGHT_FSDP_CALL_TRACKER_H_

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "pipewright/modules/tensors.h"

namespace pipewright::fsdp {

using modules::Tensors;

// One call of a module with grad mode on. The autograd graph owns it, through the hooks on its
// inputs and outputs: it lives until its backward has passed, or its outputs are destroyed.
struct Call {
  int64_t forward = 0;           // number of the outermost forward that it is part of
  bool has_input_grads = false;  // backward computes gradients of its inputs
  bool begun = false;            // its backward has
  bool ended = false;            // its backward has
};

// Notified where backward enters and leaves calls. Runs on a thread of the backward; what it throws
// ends that backward.
class CallListener {
 public:
  virtual ~CallListener() = default;
  // The gradient of an output has arrived. Once per output that has one.
  virtual void backward_enters(const std::shared_ptr<Call>& call) = 0;
  // The gradients of all inputs have been computed. Never for a call without `has_input_grads`.
  virtual void backward_leaves(const Call& call) = 0;
};

// Returns the inputs, connected to a node of their own in the graph. Sets call->has_input_grads.
Tensors hook_inputs(const Tensors& inputs, const std::shared_ptr<Call>& call,
                    const std::weak_ptr<CallListener>& listener);
// Backward through the outputs throws ContractError if the listener no longer exists.
void hook_outputs(const Tensors& outputs, const std::shared_ptr<Call>& call,
                  const std::weak_ptr<CallListener>& listener);

// Tracks the calls of one unit: which of its modules is running, and which calls backward has not
// left yet. For one thread at a time.
class CallTracker {
 public:
  explicit CallTracker(std::vector<const torch::nn::Module*> modules)
      : modules_(std::move(modules)) {}
  const std::vector<const torch::nn::Module*>& modules() const { return modules_; }

  // Whether `module` is in its own forward. A nested call through fully_shard's forward() is then
  // part of the running call.
  bool is_running(const torch::nn::Module* module) const { return running_ == module; }
  // Marks `module` as running during its lifetime.
  class Running {
   public:
    Running(CallTracker& calls, const torch::nn::Module* module);
    ~Running() { calls_.running_ = before_; }
    Running(const Running&) = delete;
    Running& operator=(const Running&) = delete;

   private:
    CallTracker& calls_;
    const torch::nn::Module* const before_;
  };

  // An outermost forward begins: no module of the unit has run in it yet.
  void begin_forward() { left_to_run_.clear(); }
  // Notes that `module` has run. Returns whether all modules of the unit now have.
  bool has_run(const torch::nn::Module* module);

  void add(const std::shared_ptr<Call>& call);
  // Backward enters `call`, possibly again: through a graph that was kept.
  void enter(const std::shared_ptr<Call>& call);

  // The calls that remain for backward after it has left a call of outermost forward `forward`.
  enum class Left {
    kNothing,       // backward has left all calls
    kOtherForward,  // only calls of other forwards, none of which backward has entered
    kThisForward,
  };
  Left left_after(int64_t forward) const;
  // Whether there is a call that backward never leaves, because its inputs get no gradient.
  bool has_call_without_end() const;

  void clear() { calls_.clear(); }

 private:
  const std::vector<const torch::nn::Module*> modules_;
  const torch::nn::Module* running_ = nullptr;
  std::set<const torch::nn::Module*> left_to_run_;  // in this forward
  std::vector<std::weak_ptr<Call>> calls_;
};

}  // namespace pipewright::fsdp

#endif  // PIPEWRIGHT_FSDP_CALL_TRACKER_H_
