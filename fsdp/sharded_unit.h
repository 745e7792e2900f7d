#ifndef PIPEWRIGHT_FSDP_SHARDED_UNIT_H_
#define PIPEWRIGHT_FSDP_SHARDED_UNIT_H_

#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "pipewright/autograd/hooks.h"
#include "pipewright/autograd/node_pointer.h"
#include "pipewright/fsdp/backward_order.h"
#include "pipewright/fsdp/call_tracker.h"
#include "pipewright/fsdp/event_log.h"
#include "pipewright/fsdp/fully_shard.h"
#include "pipewright/fsdp/grad_reducer.h"
#include "pipewright/fsdp/param_group.h"
#include "pipewright/modules/data_parallel.h"
#include "pipewright/modules/distribution.h"
#include "pipewright/modules/forward.h"
#include "pipewright/modules/reduction.h"
#include "pipewright/modules/unit_tree.h"

namespace pipewright::fsdp {

// The unit of one call of fully_shard: decides when its parameters are gathered and freed, and when
// its gradients are reduced. Its state is divided into parts:
//
//   ParamGroup      gathers and frees the parameters
//   GradReducer     accumulates and reduces their gradients
//   CallTracker     which of its modules runs
//   Pass            how far backward has come in its calls, per forward of the model
//   ForwardHistory  of the root unit: the calls of all units, per forward of the model
//   BackwardOrder   of the root unit: the order of the reductions of one backward
//
// While an executor drives the unit, ShardedStage (sharded_unit.h) makes these decisions.
//
// A unit's backward through one forward of the model begins with the first gradient of an output.
// It ends when backward has left all calls that the unit had in that forward, or with the whole
// backward if it never leaves one (call_tracker.h). A backward through several forwards reduces the
// unit once for each.
class ShardedUnit final : public autograd::GradListener,
                          public CallListener,
                          public modules::ForwardHook,
                          public modules::Distributor,
                          public modules::UnitTree<ShardedUnit> {
 public:
  // The values set by the setters of Sharded.
  struct Settings {
    std::optional<bool> reshard_after_forward;  // replaces the option
    bool reshard_after_backward = true;
    bool all_reduce = true;
    bool is_last_backward = true;
    bool unshard_in_backward = true;
    bool unshard_async_op = false;
    std::vector<ShardedUnit*> forward_prefetch;
    std::optional<std::vector<ShardedUnit*>> backward_prefetch;  // replaces the option
    std::optional<double> divide_factor;
    bool force_sum = false;
  };

  // `replicas`: the ranks that have the same shards; null if this is the only one.
  ShardedUnit(std::vector<const torch::nn::Module*> modules, ParamGroup params,
              comms::BackendPtr replicas, Options options);
  ~ShardedUnit() override;
  // To be called once, after construction: hooks the parameters, and becomes the unit around
  // `nested`. `replicated`: other tensors of the modules, which every rank has.
  void begin(const std::vector<std::shared_ptr<ShardedUnit>>& nested,
             const std::vector<at::Tensor>& replicated);
  // Prepends `prefix`, the path of this unit's modules in the enclosing unit's, to the names of
  // this unit and of its nested units.
  void add_prefix(const std::string& prefix);

  // Quoted, for messages.
  std::string display_name() const;
  const ParamGroup& params() const { return params_; }

  // ForwardHook:
  Tensors run(const torch::nn::Module* module, const Function& function, Tensors inputs) override;

  // Distributor:
  void store_parts() override {
    reshard();
    settle();
  }

  // What Sharded calls; it sets the settings too.
  void unshard_async();
  void wait_unshard();
  void reshard() {
    recover();
    reshard(/*post_forward=*/false);
  }
  bool is_unsharded() const { return params_.is_unsharded(); }
  Settings& settings() { return settings_; }
  void set_all_reduce_hook(std::function<void(const at::Tensor&)> hook) {
    grads_.set_all_reduce_hook(std::move(hook));
  }
  void set_post_optim_event(std::shared_ptr<c10::Event> event) {
    post_optim_event_ = std::move(event);
  }
  void set_gradient_divide_factor(double factor);
  void set_force_sum_reduction_for_comms(bool force);
  void set_allocates_from_group(bool enable) { params_.set_allocates_from_group(enable); }
  int64_t bytes_copied() const { return params_.bytes_copied() + grads_.bytes_copied(); }
  // See event_log.h.
  void set_event_log(std::shared_ptr<EventLog> log) { event_log_ = std::move(log); }

  // GradListener:
  at::Tensor take(size_t parameter, const at::Tensor& grad) override {
    return grads_.take(parameter, grad);
  }
  void after_accumulate(size_t parameter) override;
  // CallListener:
  void backward_enters(const std::shared_ptr<Call>& call) override;
  void backward_leaves(const std::shared_ptr<Call>& call) override;

  // For BackwardOrder: this unit in the backward that runs.
  void begin_backward() { progress_ = {}; }
  // Between backwards, gradients that are not reduced yet follow zero_grad().
  void adopt_zero_grad() { grads_.backward_begins(); }
  void watch_zero_grad() { grads_.backward_ended(); }
  // Whether this or an earlier backward has reached this unit since its last reduction.
  bool was_reached() const { return is_unreduced_ || grads_.has_grads(); }
  // Whether all gradients of this forward have arrived.
  bool is_done(int64_t forward) { return pass(forward).is_done(); }
  void set_done(int64_t forward) { pass(forward).set_done(); }
  // Backward has left this unit: frees its parameters. A no-op if it is not in it.
  void leave_backward();
  void reduce();
  // Reduces what has arrived since the unit was done. All ranks do if backward entered the unit
  // again, although some may have nothing to add.
  void reduce_rest();
  void wait_reduce();
  void join_reductions() { grads_.join(); }
  void end_backward();
  // After a failed step: drops its state in this unit.
  void forget();

  // State of the root unit:
  ForwardHistory& forwards() { return forwards_; }
  BackwardOrder& backward() { return backward_; }
  bool is_last_backward() const { return settings_.is_last_backward; }

  // Posts gathers of this unit and of those nested in it on the stream of `other`.
  void share_gather_stream(const ShardedUnit& other) {
    for_each([&](ShardedUnit& unit) { unit.params_.share_gather_stream(other.params_); });
  }

  // For ShardedStage.
  void set_driven(bool driven);
  modules::GradientSync& gradient_sync() { return sync_; }
  void abort();

 private:
  // In the backward that runs.
  struct Progress {
    bool running = false;      // backward is between entering and leaving this unit
    std::vector<Pass> passes;  // one per forward that it has entered; usually one
    std::set<size_t> ready;    // driven: parameters whose last gradient has arrived
    // The forward of this unit whose backward runs: of the model, and its place in the history.
    int64_t forward = 0;
    std::optional<size_t> place;
  };

  void note(Event event);
  void recover();
  void distribute(const at::Tensor& tensor, std::vector<int64_t> sizes, std::optional<int64_t> dim);
  void update_reduction();
  // As unshard_async(), in a forward or backward, which does not write to shards: does not wait
  // for computation. Returns whether an all-gather was posted.
  bool gather();
  void reshard(bool post_forward);
  void settle();
  bool is_trainable() const;
  void check_driven_forward() const;
  Tensors run_cast(const torch::nn::Module* module, const Function& function, Tensors inputs);
  Tensors run_driven(const Function& function, const Tensors& inputs);
  Tensors to_caller(Tensors outputs);
  Tensors record(const Tensors& inputs, const std::shared_ptr<Call>& call);
  void model_forward_begins(bool trains);
  void gather_next();
  void drop_unused_prefetch();
  void call_ends(const torch::nn::Module* module, bool is_outermost);
  void end_forward();
  Pass& pass(int64_t forward);
  void pre_backward(int64_t forward);
  void prefetch_backward();

  CallTracker calls_;
  ParamGroup params_;
  GradReducer grads_;
  const Options options_;
  std::string name_;  // path in the outermost module
  // By parameter: its gradient accumulator, which owns the hooks; null before it is trained.
  std::vector<autograd::NodePtr> accumulators_;
  Settings settings_;
  modules::GradientSync sync_;
  std::shared_ptr<EventLog> event_log_;  // of the root unit: of all units; null unless recorded
  Progress progress_;
  bool is_unreduced_ = false;  // backward has entered it since its last reduction
  int generation_;             // of the group, as of the last recover()
  // Used while this unit is the root.
  std::shared_ptr<c10::Event> post_optim_event_;  // for the next forward
  ForwardHistory forwards_;
  BackwardOrder backward_;
};

// The unit of each module that is sharded now. Thread-safe.
modules::ModuleRegistry<torch::nn::Module, ShardedUnit>& sharded_modules();

// A tree of sharded units as a pipeline stage. While it exists, the executor's program decides when
// the units gather and free their parameters. Forwards install no hooks on inputs and outputs: a
// unit is ready to be reduced when all its parameters have accumulated their gradients, in a B or a
// W. A unit without gradients on this rank is reduced too, as zeros: whether there are any may
// differ between ranks. A parameter that no rank used keeps its .grad.
class ShardedStage final : public modules::DrivenStage<ShardedUnit> {
 public:
  using DrivenStage::DrivenStage;

  c10d::Backend* group() const override { return root().params().group().get(); }
  void unshard() override;
  void wait_unshard() override;
  void reshard() override;
  bool frees_parameters() const override { return true; }
  // Throws ContractError if a resharded unit has frozen parameters, which a W may read.
  void before_backward(int microbatch, bool last) override;
  void wait_reduce() override;

 protected:
  void reduce_all() override;
};

}  // namespace pipewright::fsdp

#endif  // PIPEWRIGHT_FSDP_SHARDED_UNIT_H_
