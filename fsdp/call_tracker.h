#ifndef PIPEWRIGHT_FSDP_CALL_TRACKER_H_
#define PIPEWRIGHT_FSDP_CALL_TRACKER_H_

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "pipewright/modules/tensors.h"

namespace pipewright::fsdp {

class ShardedUnit;

// The forwards of a model that a backward may still pass: for each, the order in which its units
// began and ended, and how often they were called. Backward reduces in the reverse of the first
// order, and prefetches in the reverse of the second; the next forward prefetches in the first.
// State of the root unit; for one thread at a time.
//
// All ranks must have the same history, and they make the same calls, but one rank may drop outputs
// that another keeps. So a forward without a backward stays until it is one of the oldest.
class ForwardHistory {
 public:
  // A forward of a unit, inside the forward of the unit around it. The outermost one is the forward
  // of the model.
  class Scope {
   public:
    explicit Scope(ForwardHistory& history) : depth_(++history.depth_) {}
    ~Scope() { --depth_; }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;
    bool is_outermost() const { return depth_ == 1; }

   private:
    int& depth_;
  };
  bool is_inside_forward() const { return depth_ > 0; }

  // The calls of one unit in one forward, as far as backward passes them.
  struct Calls {
    int with_end = 0;      // backward computes gradients of their inputs
    int without_end = 0;   // it does not: they end with the whole backward
    int checkpointed = 0;  // in checkpointed parts: backward repeats them

    void add(bool has_end) { ++(has_end ? with_end : without_end); }
  };
  // One forward of the model.
  struct Forward {
    int64_t number = 0;
    std::vector<ShardedUnit*> begun, ended;  // one entry per forward of a unit
    std::map<const ShardedUnit*, Calls> calls;
    // Parallel to `ended`: whether the backward that runs has reached it.
    std::vector<bool> is_passed;
    bool has_backward = false;  // a backward has passed it

    void unit_ended(ShardedUnit& unit);
    // The last forward of the unit that the backward has not reached, which it reaches now: its
    // index in `ended`. nullopt if there is none.
    std::optional<size_t> pass(const ShardedUnit& unit);
    Calls calls_of(const ShardedUnit& unit) const;
  };

  // The outermost forward begins. `trains`: grad mode is on, so a backward may follow. Forgets the
  // forwards that have had their backward.
  void begin(bool trains);
  // The number, counted from 1, of the current outermost forward.
  int64_t number() const { return number_; }
  // The forward that runs; null if it does not train.
  Forward* current() { return trains_ && !forwards_.empty() ? &forwards_.back() : nullptr; }
  // Null if it is not, or no longer, in the history.
  Forward* find(int64_t number);

  // `unit` begins, in any forward. Returns the unit that will begin next if this forward goes on
  // like the previous one, which it has done so far; null if that is not known.
  ShardedUnit* next_after(ShardedUnit& unit);
  // `unit` has been gathered ahead of its forward. take_unused() returns the last such unit if its
  // forward has not begun, once; otherwise null.
  void prefetched(ShardedUnit& unit) { prefetched_ = &unit; }
  ShardedUnit* take_unused() { return std::exchange(prefetched_, nullptr); }

  // Forgets all forwards, and the order in which units begin.
  void clear();

 private:
  int depth_ = 0;
  int64_t number_ = 0;
  bool trains_ = false;
  std::deque<Forward> forwards_;                // by number
  std::vector<ShardedUnit*> previous_, order_;  // in which units begin: the last forward, this one
  bool follows_previous_ = false;               // so far
  ShardedUnit* prefetched_ = nullptr;
};

using modules::Tensors;

// One call of a module with grad mode on. The autograd graph owns it, through the hooks on its
// inputs and outputs. Nothing may depend on how long it lives: ranks may keep different outputs.
struct Call {
  int64_t forward = 0;           // number of the outermost forward that it is part of
  bool recomputes = false;       // it is checkpointing's second forward
  bool has_input_grads = false;  // backward computes gradients of its inputs
  // Numbers of the last backwards that entered and left it; 0: none.
  int64_t entered_in = 0, left_in = 0;
  int64_t entered_by = -1;  // autograd's id of the backward, which differs for inner ones
};

// Notified where backward enters and leaves calls. Runs on a thread of the backward; what it throws
// ends that backward.
class CallListener {
 public:
  virtual ~CallListener() = default;
  // The gradient of an output has arrived. Once per output that has one.
  virtual void backward_enters(const std::shared_ptr<Call>& call) = 0;
  // The gradients of all inputs have been computed. Never for a call without `has_input_grads`.
  virtual void backward_leaves(const std::shared_ptr<Call>& call) = 0;
};

// Returns the inputs, connected to a node of their own in the graph. Sets call->has_input_grads.
Tensors hook_inputs(const Tensors& inputs, const std::shared_ptr<Call>& call,
                    const std::weak_ptr<CallListener>& listener);
// The hooks survive writes to the outputs. Backward through the outputs throws ContractError if the
// listener no longer exists.
void hook_outputs(const Tensors& outputs, const std::shared_ptr<Call>& call,
                  const std::weak_ptr<CallListener>& listener);

// What a call that has ended did to its inputs. Each input that it wrote to in place gets the
// result's place in the graph, and is hooked like an output, because the caller sees it. Throws
// c10::Error for an input that autograd does not let anybody write to, such as a leaf.
void adopt_writes(const Tensors& inputs, const Tensors& hooked_inputs,
                  const std::shared_ptr<Call>& call, const std::weak_ptr<CallListener>& listener);
// Replaces each output that is in the memory of a hooked input, such as that input itself, by a
// view of the tensor that the caller passed, at the output's place in the graph. A later write in
// place to one of them then changes the other, and its gradient, as it does without the unit.
void share_memory(Tensors& outputs, const Tensors& inputs, const Tensors& hooked_inputs);

// How far one backward has come in the calls that one unit had in one forward of the model.
//
// Invariant: depends only on how many calls there were, and which ones backward has reached.
class Pass {
 public:
  explicit Pass(int64_t forward) : forward_(forward) {}
  int64_t forward() const { return forward_; }

  // A second forward of checkpointing has called the unit.
  void recompute(bool has_end) { recomputed_.add(has_end); }
  // The backward with number `backward` enters `call`, possibly again, or leaves it.
  void enter(Call& call, int64_t backward);
  void leave(Call& call, int64_t backward);
  // Backward has left all `calls` of the forward, also the checkpointed ones, which it repeats.
  bool has_left(const ForwardHistory::Calls& calls) const;
  bool is_open() const { return open_ > 0; }

  // All gradients have arrived: the unit may be reduced.
  bool is_done() const { return done_; }
  void set_done() { done_ = true; }
  // Whether backward entered the unit again after it was done; forgets it.
  bool take_comes_again() { return std::exchange(comes_again_, false); }

 private:
  const int64_t forward_;
  ForwardHistory::Calls recomputed_;
  int left_ = 0;
  int open_ = 0;  // entered and not left
  bool done_ = false;
  bool comes_again_ = false;
};

// Which of a unit's modules runs, and which have run. For one thread at a time.
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
  void begin_forward() {
    left_to_run_.clear();
    has_plain_call_ = false;
    checkpointed_calls_ = 0;
  }
  // Notes that `module` has run. Returns whether all modules of the unit now have.
  bool has_run(const torch::nn::Module* module);

  // Notes a call in this forward, for a unit that an executor drives. `with_grad`: it is not in a
  // checkpointed part. `has_parts`: there are checkpointed parts in it. `recomputes`: it is the
  // second forward of a part.
  void note_call(bool with_grad, bool has_parts, bool recomputes);
  // Whether one backward may accumulate twice into a parameter, as far as calls tell: autograd does
  // so once for what is not checkpointed, and once per checkpointed part. Stays true.
  bool may_come_in_portions() const { return may_come_in_portions_; }

 private:
  const std::vector<const torch::nn::Module*> modules_;
  const torch::nn::Module* running_ = nullptr;
  std::set<const torch::nn::Module*> left_to_run_;  // in this forward
  bool has_plain_call_ = false;                     // likewise
  int checkpointed_calls_ = 0;                      // likewise
  bool may_come_in_portions_ = false;
};

}  // namespace pipewright::fsdp

#endif  // PIPEWRIGHT_FSDP_CALL_TRACKER_H_
