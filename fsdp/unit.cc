#include "pipewright/fsdp/unit.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace pipewright::fsdp {
namespace {

// Reductions of one backward that may be on their way when the next one is posted: each holds a
// buffer of whole gradients.
constexpr size_t kReductionsAtOnce = 1;

// How many forwards are within one another.
class Depth {
 public:
  explicit Depth(int& depth) : depth_(++depth) {}
  ~Depth() { --depth_; }
  Depth(const Depth&) = delete;
  Depth& operator=(const Depth&) = delete;
  bool is_outermost() const { return depth_ == 1; }

 private:
  int& depth_;
};

class Running {
 public:
  Running(const torch::nn::Module*& runs, const torch::nn::Module* module)
      : runs_(runs), before_(std::exchange(runs, module)) {}
  ~Running() { runs_ = before_; }
  Running(const Running&) = delete;
  Running& operator=(const Running&) = delete;

 private:
  const torch::nn::Module*& runs_;
  const torch::nn::Module* const before_;
};

int64_t current_task() { return torch::autograd::get_current_graph_task_id(); }

}  // namespace

// The inputs of a call, in front of which its backward ends.
class Unit::InputGrads final : public torch::autograd::Node {
 public:
  InputGrads(std::weak_ptr<Unit> unit, std::shared_ptr<Call> call)
      : unit_(std::move(unit)), call_(std::move(call)) {}
  std::string name() const override { return "FullyShardInputs"; }

  torch::autograd::variable_list apply(torch::autograd::variable_list&& grads) override {
    call_->ended = true;
    const auto unit = unit_.lock();
    if (unit && unit->in_backward_) unit->call_ended(call_->forward);
    return std::move(grads);
  }

 private:
  const std::weak_ptr<Unit> unit_;
  const std::shared_ptr<Call> call_;
};

Unit::Unit(std::vector<const torch::nn::Module*> modules, ParamGroup group, int ranks,
           Options options, std::vector<std::shared_ptr<Unit>> nested,
           std::function<void(const torch::nn::Module*)> forget_module)
    : modules_(std::move(modules)),
      group_(std::move(group)),
      ranks_(ranks),
      options_(std::move(options)),
      nested_(std::move(nested)),
      forget_module_(std::move(forget_module)) {}

Unit::~Unit() {
  for (const torch::nn::Module* module : modules_) forget_module_(module);
}

void Unit::begin() {
  for (const std::shared_ptr<Unit>& unit : nested_) unit->outer_ = self();
  for (size_t i = 0; i < group_.size(); ++i) {
    if (!group_.parameter(i).requires_grad()) continue;
    accumulators_.push_back(autograd::listen(group_.parameter(i), self(), i));
    ++trainable_;
  }
  group_.set_unit_name(display_name());
  update_reduction();
}

std::shared_ptr<Unit> Unit::root() {
  const std::shared_ptr<Unit> outer = outer_.lock();
  return outer ? outer->root() : self();
}

template <typename Visit>
void Unit::for_each(const Visit& visit) {
  for (auto unit = nested_.rbegin(); unit != nested_.rend(); ++unit) (*unit)->for_each(visit);
  visit(*this);
}

std::string Unit::display_name() const {
  return name_.empty() ? (outer_.expired() ? "the root" : modules_[0]->name()) : "`" + name_ + "`";
}

void Unit::add_prefix(const std::string& prefix) {
  name_ = name_.empty() ? prefix : prefix + "." + name_;
  group_.set_unit_name(display_name());
  for (const std::shared_ptr<Unit>& unit : nested_) unit->add_prefix(prefix);
}

std::vector<std::string> Unit::parameter_names() const {
  std::vector<std::string> names;
  for (size_t i = 0; i < group_.size(); ++i) names.push_back(group_.name(i));
  return names;
}

void Unit::note(Event event, const std::string& unit) {
  if (options_.trace) options_.trace->push_back({event, unit});
}

void Unit::update_reduction() {
  if (group_.size() == 0) return;
  group_.set_reduction(
      reduction_of(group_.parameter(0).scalar_type(), ranks_, divide_factor_, force_sum_));
}

// What was asked for.

void Unit::set_reshard_after_forward(bool reshard, bool recurse) {
  reshard_after_forward_ = reshard;
  if (!recurse) return;
  for (const auto& unit : nested_) unit->set_reshard_after_forward(reshard, true);
}

void Unit::set_reshard_after_backward(bool reshard, bool recurse) {
  reshard_after_backward_ = reshard;
  if (!recurse) return;
  for (const auto& unit : nested_) unit->set_reshard_after_backward(reshard, true);
}

void Unit::set_requires_gradient_sync(bool sync, bool recurse) {
  requires_gradient_sync_ = sync;
  if (!recurse) return;
  for (const auto& unit : nested_) unit->set_requires_gradient_sync(sync, true);
}

void Unit::set_modules_to_forward_prefetch(const std::vector<Sharded*>& units) {
  forward_prefetch_.clear();
  for (Sharded* unit : units) forward_prefetch_.push_back(static_cast<Unit*>(unit));
}

void Unit::set_modules_to_backward_prefetch(const std::vector<Sharded*>& units) {
  backward_prefetch_.emplace();
  for (Sharded* unit : units) backward_prefetch_->push_back(static_cast<Unit*>(unit));
}

void Unit::set_gradient_divide_factor(double factor) {
  if (!(factor > 0)) {
    throw std::invalid_argument("fully_shard: gradient divide factor " + std::to_string(factor) +
                                ": wanted a positive number");
  }
  divide_factor_ = factor;
  update_reduction();
}

void Unit::set_force_sum_reduction_for_comms(bool force) {
  force_sum_ = force;
  update_reduction();
}

// Gathering.

void Unit::unshard_async() {
  if (group_.begin_unshard()) note(Event::kUnshard);
}

void Unit::wait_unshard() {
  try {
    if (group_.wait_unshard()) note(Event::kWaitUnshard);
  } catch (const std::logic_error&) {
    throw;  // of the parameters' own
  } catch (const std::exception& error) {
    throw std::runtime_error(c10::str("fully_shard: the gather of ", display_name(), " (`",
                                      group_.name(0), "` and ", group_.size() - 1,
                                      " more) failed: ", error.what()));
  }
}

void Unit::reshard(bool post_forward) {
  if (group_.is_gathering()) wait_unshard();
  const ShardState before = group_.state();
  group_.reshard(post_forward);
  if (group_.state() != before) note(Event::kReshard);
}

// Forward.

void Unit::check_trainable() const {
  size_t trainable = 0;
  for (size_t i = 0; i < group_.size(); ++i) trainable += group_.parameter(i).requires_grad();
  if (trainable == trainable_) return;
  throw std::logic_error(c10::str("fully_shard: ", trainable, " parameters of ", display_name(),
                                  " require a gradient, and ", trainable_,
                                  " did: choose them before fully_shard"));
}

Unit::Tensors Unit::hook_inputs(const Tensors& inputs, const std::shared_ptr<Call>& call) {
  Tensors differentiable;
  for (const at::Tensor& input : inputs) {
    if (input.defined() && input.requires_grad()) differentiable.push_back(input);
  }
  if (differentiable.empty()) return inputs;
  call->has_input_grads = true;
  const auto node = std::make_shared<InputGrads>(self(), call);
  node->set_next_edges(torch::autograd::collect_next_edges(differentiable));
  Tensors hooked = inputs;
  for (at::Tensor& input : hooked) {
    if (!input.defined() || !input.requires_grad()) continue;
    input = input.detach();
    torch::autograd::create_gradient_edge(input, node);
  }
  return hooked;
}

void Unit::hook_outputs(const Tensors& outputs, const std::shared_ptr<Call>& call) {
  for (const at::Tensor& output : outputs) {
    if (!output.defined() || !output.requires_grad() || output.is_leaf()) continue;
    // The call lives as long as the graph.
    output.register_hook([unit = std::weak_ptr<Unit>(self()), call](const at::TensorBase&) {
      const auto alive = unit.lock();
      if (!alive) {
        throw std::runtime_error(
            "fully_shard: backward through a module whose unit is gone, and its parameters with "
            "it: keep what fully_shard returned");
      }
      call->begun = true;
      // Once more through a graph that was kept.
      if (std::exchange(call->ended, false)) {
        std::erase_if(alive->calls_, [&](const auto& known) { return known.lock() == call; });
        alive->calls_.push_back(call);
      }
      alive->pre_backward();
    });
  }
}

Unit::Tensors Unit::run(const torch::nn::Module* module, const Function& function, Tensors inputs) {
  std::optional<at::Device> device = options_.device;
  if (!device && group_.size() > 0) device = group_.parameter(0).device();
  for (at::Tensor& input : inputs) {
    if (device && input.defined()) input = input.to(*device, /*non_blocking=*/true);
  }
  if (driven_) {
    if (group_.size() > 0 && !is_unsharded()) {
      throw std::logic_error(c10::str("fully_shard: forward of ", display_name(), ", whose `",
                                      group_.name(0), "` is ", to_string(group_.state()),
                                      ": the executor's program has it resharded here"));
    }
    return function(inputs);
  }
  if (runs_ == module) return function(inputs);  // within its own forward
  const Running running(runs_, module);
  const bool recomputes = current_task() != -1;  // a checkpointed part runs again, in backward
  check_trainable();
  unshard();
  if (!recomputes) {
    for (Unit* unit : forward_prefetch_) unit->unshard_async();
  }
  const auto call = std::make_shared<Call>();
  const std::shared_ptr<Unit> outermost = root();
  const bool with_grad = c10::GradMode::is_enabled();
  // A forward for its own sake, with grad mode off from the outside on, has no backward to come.
  const Depth depth(outermost->depth_);
  if (depth.is_outermost() && !recomputes) {
    outermost->trains_ = with_grad;
    outermost->drop_lost_forwards();
    if (with_grad) outermost->open_forwards_.push_back(call);
    outermost->for_each([](Unit& unit) { unit.left_to_run_.clear(); });
    ++outermost->forwards_begun_;
  }
  call->forward = outermost->forwards_begun_;
  if (outermost->trains_ && !recomputes) {
    outermost->begin_order_.push_back(this);
    ++forwards_;
  }
  if (with_grad) {
    std::erase_if(calls_, [](const auto& known) {
      const auto alive = known.lock();
      return !alive || alive->ended;
    });
    calls_.push_back(call);
    inputs = hook_inputs(inputs, call);
  }
  Tensors outputs = function(inputs);
  if (with_grad) hook_outputs(outputs, call);
  if (recomputes) return outputs;
  if (left_to_run_.empty()) left_to_run_.insert(modules_.begin(), modules_.end());
  left_to_run_.erase(module);
  if (left_to_run_.empty()) forward_ended();
  // Nothing will come back for what is whole, and an optimizer is to find shards.
  if (depth.is_outermost() && !outermost->trains_)
    outermost->for_each([](Unit& unit) { unit.reshard(); });
  return outputs;
}

// Forwards whose outputs nobody has any more have no backward to come.
void Unit::drop_lost_forwards() {
  std::erase_if(open_forwards_, [](const auto& known) {
    const auto call = known.lock();
    return !call || call->begun;
  });
  if (!open_forwards_.empty() || backward_runs_) return;
  forward_order_.clear();
  begin_order_.clear();
  for_each([](Unit& unit) {
    unit.forwards_ = 0;
    unit.places_.clear();
  });
}

void Unit::forward_ended() {
  const std::shared_ptr<Unit> outermost = root();
  if (outermost->trains_) {
    places_.push_back(outermost->forward_order_.size());
    outermost->forward_order_.push_back(this);
  } else {
    return reshard();
  }
  const bool is_outermost = outermost.get() == this;
  const int ranks = reshard_after_forward_
                        ? (*reshard_after_forward_ ? ranks_ : 1)
                        : options_.reshard_after_forward.ranks(is_outermost, ranks_);
  if (ranks > 1 || ranks_ == 1) reshard(/*post_forward=*/ranks < ranks_);
}

// Backward.

void Unit::pre_backward() {
  if (driven_) return;
  const std::shared_ptr<Unit> outermost = root();
  if (c10::GradMode::is_enabled()) {
    throw std::runtime_error("fully_shard: a backward with create_graph through " + display_name() +
                             ", whose parameters are freed before the next one");
  }
  if (outermost->depth_ > 0) {
    throw std::runtime_error("fully_shard: a backward through " + display_name() +
                             " within the forward of a unit around it");
  }
  outermost->watch();
  if (in_backward_) return;
  in_backward_ = true;
  comes_again_ = comes_again_ || done_;
  note(Event::kPreBackward);
  if (!places_.empty()) {
    place_ = places_.back();
    places_.pop_back();
  }
  if (unshard_in_backward_) unshard();
  if (backward_prefetch_) {
    for (Unit* unit : *backward_prefetch_) unit->unshard_async();
  } else if (outermost->options_.backward_prefetch == BackwardPrefetch::kPre) {
    prefetch_backward();
  }
}

// The unit that ran before this one in forward, if it is yet to be gathered for its backward.
void Unit::prefetch_backward() {
  const std::shared_ptr<Unit> outermost = root();
  Unit* target = nullptr;
  if (place_ && *place_ > 0 && *place_ <= outermost->forward_order_.size())
    target = outermost->forward_order_[*place_ - 1];
  if (target && (target->in_backward_ || !target->unshard_in_backward_ || target->is_unsharded() ||
                 target->group_.is_gathering() ||
                 std::ranges::find(target->places_, *place_ - 1) == target->places_.end()))
    target = nullptr;
  outermost->note(Event::kPrefetch, target ? target->display_name() : "");
  if (target) target->unshard_async();
}

void Unit::grad_ready(size_t parameter) {
  group_.grad_ready(parameter);
  if (driven_) {
    if (!reduces_now_) return;
    ready_.insert(parameter);
    if (ready_.size() < trainable_) return;
    done_ = true;
    root()->reduce_in_order();
    return;
  }
  root()->watch();
}

// A call whose inputs get no gradient has no end that all ranks see at the same place: the last
// gradient of a parameter is none, as ranks may use different ones.
void Unit::call_ended(int64_t forward) {
  bool open = false, needed = false;
  for (const std::weak_ptr<Call>& known : calls_) {
    const auto call = known.lock();
    if (!call || call->ended) continue;
    open = true;
    // One that has begun is half done: a checkpointed part of it runs again, or a device's thread
    // is ahead.
    needed = needed || call->begun || call->forward == forward;
  }
  if (!open) return post_backward();
  if (!needed) leave_backward();
}

bool Unit::ends_with_backward() const {
  return std::ranges::any_of(calls_, [](const auto& known) {
    const auto call = known.lock();
    return call && !call->has_input_grads;
  });
}

// Another one of its calls may come back to it.
void Unit::leave_backward() {
  in_backward_ = false;
  note(Event::kPostBackward);
  if (reshard_after_backward_) reshard();
  if (!backward_prefetch_ && root()->options_.backward_prefetch == BackwardPrefetch::kPost)
    prefetch_backward();
}

void Unit::post_backward() {
  if (in_backward_) leave_backward();
  done_ = true;
  ready_.clear();
  root()->reduce_in_order();
}

void Unit::reduce() {
  if (trainable_ == 0 || !reduces()) return;
  const std::shared_ptr<Unit> outermost = root();
  // While an executor runs other stages in between, gradients are all kept anyway.
  if (!driven_) outermost->finish_reductions(kReductionsAtOnce);
  group_.begin_reduce();
  if (ranks_ == 1) return finish_at_once();
  note(Event::kReduce);
  outermost->reducing_.push_back(this);
}

// One rank: nobody is waited for.
void Unit::finish_at_once() {
  while (group_.reductions_on_their_way() > 0) group_.wait_reduce();
}

// Of the root.

void Unit::reduce_in_order() {
  for (; next_reduce_ < reduce_order_.size() && reduce_order_[next_reduce_]->done_; ++next_reduce_)
    reduce_order_[next_reduce_]->reduce();
}

void Unit::finish_reductions(size_t but) {
  while (reducing_.size() > but) {
    Unit* unit = reducing_.front();
    reducing_.pop_front();
    try {
      unit->group_.wait_reduce();
    } catch (const std::exception& error) {
      const std::string name = unit->display_name();
      for_each([](Unit& each) { each.forget(); });
      throw std::runtime_error("fully_shard: the reduction of " + name +
                               " failed: " + error.what());
    }
    note(Event::kWaitReduce, unit->display_name());
  }
}

// All that a step has left on its way.
void Unit::forget() {
  group_.abandon();
  in_backward_ = done_ = comes_again_ = backward_runs_ = false;
  ready_.clear();
  place_.reset();
  places_.clear();
  forwards_ = 0;
  calls_.clear();
  open_forwards_.clear();
  order_is_open_ = false;
  forward_order_.clear();
  begin_order_.clear();
  reduce_order_.clear();
  next_reduce_ = 0;
  reducing_.clear();
}

void Unit::backward_begins() {
  if (std::exchange(backward_runs_, true)) {
    // The one before has stopped on an error. What it added is lost with it; but ranks may have
    // stopped at other places.
    const bool reduced = next_reduce_ > 0;
    for_each([](Unit& unit) { unit.forget(); });
    if (reduced) {
      throw std::runtime_error(
          "fully_shard: an earlier backward stopped on an error after its reductions had begun: "
          "ranks may not agree on them any more");
    }
    backward_runs_ = true;
  }
  for_each([](Unit& unit) {
    unit.in_backward_ = unit.done_ = unit.comes_again_ = false;
    unit.ready_.clear();
    unit.place_.reset();
  });
  reduce_order_.clear();
  next_reduce_ = 0;
  // A unit within another ends before it, and one that runs at both ends of the model ends late.
  for (Unit* unit : begin_order_) {
    if (unit->forwards_ > 0 && std::ranges::find(reduce_order_, unit) == reduce_order_.end())
      reduce_order_.push_back(unit);
  }
  std::ranges::reverse(reduce_order_);
  std::ranges::stable_partition(reduce_order_,
                                [](const Unit* unit) { return !unit->ends_with_backward(); });
}

bool Unit::is_complete() {
  return std::ranges::all_of(reduce_order_, [](const Unit* unit) { return unit->done_; });
}

void Unit::backward_ends() {
  // Those that were used without a forward of theirs come last, as they stand in the model.
  for_each([this](Unit& unit) {
    const bool used = unit.in_backward_ || unit.done_ || unit.group_.has_grads();
    if (used && std::ranges::find(reduce_order_, &unit) == reduce_order_.end())
      reduce_order_.push_back(&unit);
  });
  for (size_t i = 0; i < reduce_order_.size(); ++i) {
    if (!reduce_order_[i]->done_) reduce_order_[i]->post_backward();
  }
  reduce_in_order();
  // What came behind a unit's reduction, from a part that was checkpointed apart; on all ranks,
  // though one of them may not have used it there.
  for (Unit* unit : reduce_order_) {
    if (unit->comes_again_ || unit->group_.has_grads()) unit->reduce();
  }
  for_each([](Unit& unit) {
    if (unit.reshard_after_backward_) unit.reshard();  // gathered ahead, and not needed
    unit.in_backward_ = unit.done_ = unit.comes_again_ = false;
    unit.ready_.clear();
    unit.forwards_ = std::max(0, unit.forwards_ - 1);
  });
  backward_runs_ = false;
  reduce_order_.clear();
  next_reduce_ = 0;
  if (!is_last_backward_) return;
  finish_reductions(0);
  drop_lost_forwards();  // but another one may wait for its own backward
}

// For the executor.

void Unit::set_driven(bool driven) {
  for_each([driven](Unit& unit) {
    unit.driven_ = driven;
    unit.reduces_now_ = false;
    unit.forget();
  });
}

void Unit::unshard_all() {
  // The first one is needed first.
  unshard_async();
  for (const auto& unit : nested_) unit->unshard_all();
}

void Unit::wait_unshard_all() {
  wait_unshard();
  for (const auto& unit : nested_) unit->wait_unshard_all();
}

void Unit::reshard_all() {
  for_each([](Unit& unit) { unit.reshard(); });
}

void Unit::before_backward(bool last) {
  for_each([last](Unit& unit) {
    unit.expect_trainable_if_sharded();
    unit.reduces_now_ = last;
  });
  if (last) open_order();
}

// From the last backward until REDUCE_GRAD.
void Unit::open_order() {
  if (std::exchange(order_is_open_, true)) return;
  reduce_order_.clear();
  next_reduce_ = 0;
  for_each([this](Unit& unit) { reduce_order_.push_back(&unit); });
}

// A W on a resharded stage: what a gradient is made of might be a frozen parameter.
void Unit::expect_trainable_if_sharded() const {
  if (is_unsharded()) return;
  for (size_t i = 0; i < group_.size(); ++i) {
    if (group_.parameter(i).requires_grad()) continue;
    throw std::logic_error("fully_shard: a W on the resharded " + display_name() + ", whose `" +
                           group_.name(i) + "` is frozen and may be read");
  }
}

void Unit::reduce_grad() {
  open_order();
  for_each([](Unit& unit) { unit.done_ = unit.reduces_now_ = true; });
  reduce_in_order();
  // What came behind a unit's reduction, from a part that was checkpointed apart.
  for (Unit* unit : reduce_order_) {
    if (unit->group_.has_grads()) unit->reduce();
  }
  order_is_open_ = false;
  for_each([](Unit& unit) {
    unit.done_ = unit.reduces_now_ = false;
    unit.ready_.clear();
  });
}

void Unit::wait_reduce() { finish_reductions(0); }

void Unit::abort() {
  for_each([](Unit& unit) {
    unit.forget();
    unit.reduces_now_ = false;
    unit.group_.abort();
  });
}

namespace {

class ShardedStage final : public modules::DataParallel {
 public:
  explicit ShardedStage(std::shared_ptr<Unit> unit) : unit_(std::move(unit)) {
    unit_->set_driven(true);
  }
  ~ShardedStage() override { unit_->set_driven(false); }
  ShardedStage(const ShardedStage&) = delete;
  ShardedStage& operator=(const ShardedStage&) = delete;

  void unshard() override { unit_->unshard_all(); }
  void wait_unshard() override { unit_->wait_unshard_all(); }
  void reshard() override { unit_->reshard_all(); }
  bool frees_parameters() const override { return true; }
  void before_backward(int /*microbatch*/, bool last) override { unit_->before_backward(last); }
  void reduce_grad() override { unit_->reduce_grad(); }
  void wait_reduce() override { unit_->wait_reduce(); }
  void abort() override { unit_->abort(); }

 private:
  const std::shared_ptr<Unit> unit_;
};

}  // namespace

std::shared_ptr<modules::DataParallel> Unit::data_parallel() {
  if (!outer_.expired()) {
    throw std::logic_error("fully_shard: data_parallel of " + display_name() +
                           ", which is part of another unit: wanted the outermost one");
  }
  return std::make_shared<ShardedStage>(self());
}

}  // namespace pipewright::fsdp
