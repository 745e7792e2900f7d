#ifndef PIPEWRIGHT_FSDP_UNIT_H_
#define PIPEWRIGHT_FSDP_UNIT_H_

#include <algorithm>
#include <deque>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "pipewright/autograd/backward_watch.h"
#include "pipewright/autograd/grad_hooks.h"
#include "pipewright/fsdp/fully_shard.h"
#include "pipewright/fsdp/param_group.h"

namespace pipewright::fsdp {

// One call of fully_shard: when its group is gathered, freed and reduced. Units stand in a tree, as
// their modules do; what concerns a whole forward or backward is kept by the outermost one, the
// root.
//
// A unit's backward begins with the first gradient of an output (a hook on it). It has ended when
// the gradient of its inputs has been computed in all its calls, and with the whole backward where
// there is a call whose inputs have none. Between the backwards of its calls in two forwards, which
// may be far apart, its parameters are not kept. Reductions are posted in the reverse of the order
// in which forwards began, those that end with the backward last.
class Unit final : public Sharded, public autograd::GradListener, public autograd::BackwardWatch {
 public:
  using Tensors = std::vector<at::Tensor>;
  using Function = std::function<Tensors(const Tensors&)>;

  Unit(std::vector<const torch::nn::Module*> modules, ParamGroup group, int ranks, Options options,
       std::vector<std::shared_ptr<Unit>> nested,
       std::function<void(const torch::nn::Module*)> forget_module);
  ~Unit() override;

  // Behind the constructor, where it can be pointed to.
  void begin();
  // Its path in the outer module, which takes it in.
  void add_prefix(const std::string& prefix);
  std::string display_name() const;
  const ParamGroup& group() const { return group_; }
  const std::vector<std::shared_ptr<Unit>>& nested() const { return nested_; }

  Tensors run(const torch::nn::Module* module, const Function& function, Tensors inputs);

  // Sharded:
  void unshard_async() override;
  void wait_unshard() override;
  void reshard() override { reshard(/*post_forward=*/false); }
  bool is_unsharded() const override { return group_.state() == ShardState::kUnsharded; }
  void set_reshard_after_forward(bool reshard, bool recurse) override;
  void set_reshard_after_backward(bool reshard, bool recurse) override;
  void set_requires_gradient_sync(bool sync, bool recurse) override;
  void set_is_last_backward(bool last) override { is_last_backward_ = last; }
  void set_unshard_in_backward(bool unshard) override { unshard_in_backward_ = unshard; }
  void set_modules_to_forward_prefetch(const std::vector<Sharded*>& units) override;
  void set_modules_to_backward_prefetch(const std::vector<Sharded*>& units) override;
  void set_gradient_divide_factor(double factor) override;
  void set_force_sum_reduction_for_comms(bool force) override;
  std::shared_ptr<modules::DataParallel> data_parallel() override;
  std::vector<std::string> parameter_names() const override;
  int64_t bytes_copied() const override { return group_.bytes_copied(); }

  // For the executor; of this unit and those within it.
  void set_driven(bool driven);
  void unshard_all();
  void wait_unshard_all();
  void reshard_all();
  void before_backward(bool last);
  void reduce_grad();
  void wait_reduce();
  void abort();

  // GradListener:
  void grad_comes(size_t parameter) override { group_.grad_comes(parameter); }
  void grad_ready(size_t parameter) override;

 private:
  // One forward, until its backward has passed it, or its graph is gone.
  struct Call {
    int64_t forward = 0;           // the outermost one that it is part of
    bool has_input_grads = false;  // there is a gradient of its inputs to come
    bool begun = false;            // its backward
    bool ended = false;
  };
  class InputGrads;

  std::shared_ptr<Unit> self() { return std::static_pointer_cast<Unit>(shared_from_this()); }
  std::shared_ptr<Unit> root();
  template <typename Visit>
  void for_each(const Visit& visit);  // those within it first, the last one first
  void note(Event event) { root()->note(event, display_name()); }
  void note(Event event, const std::string& unit);
  void update_reduction();
  void reshard(bool post_forward);

  void check_trainable() const;
  Tensors hook_inputs(const Tensors& inputs, const std::shared_ptr<Call>& call);
  void hook_outputs(const Tensors& outputs, const std::shared_ptr<Call>& call);
  void forward_ended();

  void pre_backward();
  void drop_lost_forwards();
  void call_ended(int64_t forward);
  void leave_backward();
  bool ends_with_backward() const;
  void open_order();
  void expect_trainable_if_sharded() const;
  void post_backward();
  void prefetch_backward();
  bool reduces() const { return driven_ ? reduces_now_ : requires_gradient_sync_; }
  void reduce();
  void finish_at_once();
  void forget();

  // Of the root.
  void backward_begins() override;
  bool is_complete() override;
  void backward_ends() override;
  void reduce_in_order();
  void finish_reductions(size_t but);

  const std::vector<const torch::nn::Module*> modules_;
  ParamGroup group_;
  const int ranks_;
  const Options options_;
  const std::vector<std::shared_ptr<Unit>> nested_;
  const std::function<void(const torch::nn::Module*)> forget_module_;  // when it ends
  std::weak_ptr<Unit> outer_;
  std::string name_;
  std::vector<std::shared_ptr<torch::autograd::Node>> accumulators_;  // hold the hooks
  size_t trainable_ = 0;                                              // parameters

  // What was asked for.
  std::optional<bool> reshard_after_forward_;  // instead of the option
  bool reshard_after_backward_ = true;
  bool requires_gradient_sync_ = true;
  bool is_last_backward_ = true;
  bool unshard_in_backward_ = true;
  std::vector<Unit*> forward_prefetch_;
  std::optional<std::vector<Unit*>> backward_prefetch_;
  std::optional<double> divide_factor_;
  bool force_sum_ = false;

  // Forward.
  std::set<const torch::nn::Module*> left_to_run_;  // of several modules, in the forward that runs
  const torch::nn::Module* runs_ = nullptr;
  int forwards_ = 0;  // whose backward is to come
  std::vector<std::weak_ptr<Call>> calls_;
  std::vector<size_t> places_;  // of its forwards in the root's order

  // The backward that runs.
  bool in_backward_ = false;
  bool done_ = false;
  bool comes_again_ = false;  // after it was done
  std::set<size_t> ready_;    // driven: parameters
  std::optional<size_t> place_;

  // Of the root.
  std::vector<Unit*> begin_order_, forward_order_;  // as their forwards began, and ended
  std::vector<Unit*> reduce_order_;
  size_t next_reduce_ = 0;
  std::deque<Unit*> reducing_;
  bool backward_runs_ = false;
  bool order_is_open_ = false;                      // driven: until REDUCE_GRAD
  std::vector<std::weak_ptr<Call>> open_forwards_;  // the outermost ones
  int64_t forwards_begun_ = 0;                      // outermost ones
  int depth_ = 0;                                   // of forwards within one another
  bool trains_ = false;  // the outermost one that runs has a backward to come

  bool driven_ = false;       // by the executor
  bool reduces_now_ = false;  // driven: the last backward before REDUCE_GRAD runs
};

}  // namespace pipewright::fsdp

#endif  // PIPEWRIGHT_FSDP_UNIT_H_
