#include "pipewright/ddp/replicate.h"

#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <optional>
#include <set>
#include <stdexcept>
#include <utility>

#include "pipewright/autograd/backward_watch.h"
#include "pipewright/autograd/grad_hooks.h"
#include "pipewright/comms/agreement.h"
#include "pipewright/ddp/grad_buckets.h"

namespace pipewright::ddp {
namespace {

std::string describe(const std::string& name, const at::Tensor& tensor) {
  return c10::str(name, ", ", tensor.scalar_type(), " ", tensor.sizes(),
                  tensor.requires_grad() ? "" : ", frozen");
}

// One call: when its gradients are reduced. Calls stand in a tree, as their modules do; what
// concerns a whole backward is kept by the outermost one, the root.
class Unit final : public Replicated,
                   public autograd::GradListener,
                   public autograd::BackwardWatch {
 public:
  Unit(const std::vector<torch::nn::Module*>& modules, comms::BackendPtr group, Options options)
      : group_(std::move(group)), options_(std::move(options)) {
    std::set<at::TensorImpl*> seen;  // a tied weight counts once
    for (size_t i = 0; i < modules.size(); ++i) {
      const std::string prefix = modules.size() == 1 ? "" : std::to_string(i) + ".";
      for (const auto& named : modules[i]->named_parameters()) {
        if (!seen.insert(named.value().unsafeGetTensorImpl()).second) continue;
        if (!device_) device_ = named.value().device();
        const std::string name = prefix + named.key();
        if (named.value().device() != *device_) {
          refusal_ = c10::str("replicate: `", name, "` is on ", named.value().device(),
                              ", the first parameter on ", *device_, ": wanted one device");
        }
        if (const std::shared_ptr<Unit> owner = owner_of(name, named.value()))
          nest(owner->root());
        else
          parameters_.push_back({name, named.value()});
      }
      for (const auto& named : modules[i]->named_buffers()) {
        if (named.value().defined() && std::ranges::none_of(nested_, [&](const auto& unit) {
              return unit->has(named.value());
            }))
          buffers_.push_back({prefix + named.key(), named.value()});
      }
    }
    for (const std::shared_ptr<Unit>& unit : nested_) {
      if (unit->options_.find_unused_parameters == options_.find_unused_parameters) continue;
      refusal_ =
          "replicate: find_unused_parameters must be the same as in the calls for parts of the "
          "module";
    }
  }

  // Behind the constructor, where it can be pointed to. Collective.
  void begin() {
    std::vector<std::string> lines;
    lines.push_back(c10::str("options: bucket_cap_mb ", options_.bucket_cap_mb,
                             ", first_bucket_cap_mb ", options_.first_bucket_cap_mb,
                             ", find_unused_parameters ", options_.find_unused_parameters,
                             ", broadcast_buffers ", options_.broadcast_buffers, ", comm_hook ",
                             options_.comm_hook != nullptr));
    std::vector<at::Tensor> values;
    for (const auto& [name, tensor] : parameters_) {
      lines.push_back(describe("`" + name + "`", tensor));
      values.push_back(tensor);
    }
    for (const auto& [name, tensor] : buffers_) {
      lines.push_back(describe("buffer `" + name + "`", tensor));
      values.push_back(tensor);
    }
    comms::compare_lines(lines, *group_,
                         device_ ? *device_ : group_->getBoundDeviceId().value_or(at::kCPU));
    // Only now, so that no rank waits for one that was refused.
    if (!refusal_.empty()) throw std::invalid_argument(refusal_);
    comms::broadcast_values(values, *group_);
    std::vector<NamedTensor> trained;
    for (NamedTensor& parameter : std::exchange(parameters_, {})) {
      if (!parameter.tensor.requires_grad()) {
        frozen_.push_back(std::move(parameter));
        continue;
      }
      accumulators_.push_back(autograd::listen(parameter.tensor, weak_unit(), trained.size()));
      trained.push_back(std::move(parameter));
    }
    grads_.emplace(std::move(trained), group_, options_,
                   [this] { root()->for_each([](Unit& unit) { unit.grads_->forget(); }); });
    for (const std::shared_ptr<Unit>& unit : nested_) unit->outer_ = weak_unit();
  }

  void set_requires_gradient_sync(bool sync, bool recurse) override {
    sync_ = sync;
    if (!recurse) return;
    for (const std::shared_ptr<Unit>& unit : nested_) unit->set_requires_gradient_sync(sync, true);
  }
  bool requires_gradient_sync() const override { return sync_ && held_ == 0; }
  void hold_sync(int change) override {
    held_ += change;
    for (const std::shared_ptr<Unit>& unit : nested_) unit->hold_sync(change);
  }

  std::vector<at::Tensor> forward_begins(std::vector<at::Tensor> inputs) override {
    prepare_forward();
    const std::optional<at::Device> device = options_.device ? options_.device : device_;
    for (at::Tensor& input : inputs) {
      if (device && input.defined()) input = input.to(*device, /*non_blocking=*/true);
    }
    return inputs;
  }

  void prepare_forward() {
    for (const std::shared_ptr<Unit>& unit : nested_) unit->prepare_forward();
    for (size_t i = 0; i < grads_->size(); ++i) {
      const at::Tensor& tensor = grads_->tensor(i);
      // A cast or a move gives it a new one, without our hooks.
      if (torch::autograd::impl::try_get_grad_accumulator(tensor) == accumulators_[i]) continue;
      throw std::logic_error(c10::str("replicate: parameter `", grads_->name(i), "` became ",
                                      tensor.scalar_type(), " on ", tensor.device(),
                                      ": replicate a module after it is cast or moved"));
    }
    for (const auto& [name, tensor] : frozen_) {
      if (!tensor.requires_grad()) continue;
      throw std::logic_error("replicate: parameter `" + name +
                             "` was frozen: replicate a module after its parameters are chosen");
    }
    if (!options_.broadcast_buffers || !requires_gradient_sync()) return;
    std::vector<at::Tensor> values;
    for (const auto& [name, buffer] : buffers_) values.push_back(buffer);
    comms::broadcast_values(values, *group_);
  }

  std::shared_ptr<modules::DataParallel> data_parallel() override;
  size_t bucket_bytes() const override { return grads_->bytes(); }
  std::vector<std::vector<std::string>> buckets() const override {
    return grads_->names_by_bucket();
  }

  // In the thread of backward.
  void grad_comes(size_t parameter) override { grads_->grad_comes(parameter); }
  void grad_ready(size_t parameter) override {
    if (is_alone()) return;
    grads_->grad_added(parameter);
    if (!reduces()) return;
    const std::shared_ptr<Unit> outermost = root();
    if (!driven_) outermost->watch();
    grads_->grad_ready(parameter);
    // Ranks that use different parameters, in a microbatch or at all, only agree on an order that
    // is fixed over all calls.
    if (options_.find_unused_parameters || driven_)
      outermost->launch_in_order();
    else
      grads_->launch_ready();
  }

  // Driven by the executor.
  void set_driven(bool driven) {
    for_each([driven](Unit& unit) {
      unit.driven_ = driven;
      unit.reduces_now_ = false;
    });
  }
  void before_backward(bool last) {
    for_each([last](Unit& unit) { unit.reduces_now_ = last; });
  }
  void reduce_grad() {
    for_each([](Unit& unit) { unit.grads_->check_all_used(); });
    for_each([](Unit& unit) { unit.grads_->launch_rest(); });
    for_each([](Unit& unit) { unit.grads_->launch_counts(); });
  }
  void wait_reduce() {
    for_each([](Unit& unit) {
      unit.grads_->finish();
      unit.reduces_now_ = false;
    });
  }
  void abort() {
    for_each([](Unit& unit) {
      unit.group_->abort();
      unit.grads_->forget();
      unit.reduces_now_ = false;
    });
  }

 private:
  static std::shared_ptr<Unit> owner_of(const std::string& name, const at::Tensor& parameter) {
    const auto listener = autograd::listener_of(parameter);
    auto unit = std::dynamic_pointer_cast<Unit>(listener);
    if (listener && !unit) {
      throw std::invalid_argument("replicate: `" + name +
                                  "` is kept by another wrapper, such as fully_shard");
    }
    return unit;
  }

  std::weak_ptr<Unit> weak_unit() { return std::static_pointer_cast<Unit>(shared_from_this()); }

  std::shared_ptr<Unit> root() {
    const std::shared_ptr<Unit> outer = outer_.lock();
    return outer ? outer->root() : weak_unit().lock();
  }

  // Whether a buffer is kept by it or by a nested call.
  bool has(const at::Tensor& buffer) const {
    return std::ranges::any_of(buffers_,
                               [&](const auto& known) { return known.tensor.is_same(buffer); }) ||
           std::ranges::any_of(nested_, [&](const auto& unit) { return unit->has(buffer); });
  }

  void nest(const std::shared_ptr<Unit>& unit) {
    if (std::ranges::find(nested_, unit) == nested_.end()) nested_.push_back(unit);
  }

  // Nested calls first, the last one first, as backward comes to them if they follow one another.
  template <typename Function>
  void for_each(const Function& function) {
    for (auto unit = nested_.rbegin(); unit != nested_.rend(); ++unit) (*unit)->for_each(function);
    function(*this);
  }

  bool is_alone() const { return group_->getSize() == 1; }

  // Whether the backward that runs is to reduce.
  bool reduces() const { return driven_ ? reduces_now_ : requires_gradient_sync(); }

  // As far as gradients are ready in the order of for_each. Whether all are.
  bool launch_in_order() {
    for (auto unit = nested_.rbegin(); unit != nested_.rend(); ++unit) {
      if (!(*unit)->launch_in_order()) return false;
    }
    return is_alone() || !reduces() || grads_->launch_ready();
  }

  // Whether the backward that has run without an executor, here or in a call around it, was one
  // of its parameters.
  bool takes_part() const {
    return !is_alone() && requires_gradient_sync() &&
           (options_.find_unused_parameters || grads_->is_any_ready());
  }

  // Of the root, where nobody drives it.
  void backward_begins() override {
    for_each([](Unit& unit) {
      if (!unit.driven_) unit.grads_->begin_backward();
    });
  }
  bool is_complete() override {
    bool complete = true;
    for_each([&](Unit& unit) {
      complete = complete && (!unit.takes_part() || unit.grads_->is_launched());
    });
    return complete;
  }
  void backward_ends() override {
    std::vector<GradBuckets*> all;
    for_each([&](Unit& unit) {
      if (unit.takes_part()) all.push_back(&*unit.grads_);
    });
    for (GradBuckets* grads : all) grads->check_all_ready();
    for (GradBuckets* grads : all) grads->launch_rest();
    for (GradBuckets* grads : all) grads->launch_counts();
    for (GradBuckets* grads : all) grads->finish();
  }

  const comms::BackendPtr group_;
  const Options options_;
  std::weak_ptr<Unit> outer_;
  std::vector<std::shared_ptr<Unit>> nested_;
  std::string refusal_;                  // why the modules cannot be replicated
  std::vector<NamedTensor> parameters_;  // until it begins
  std::vector<NamedTensor> frozen_, buffers_;
  std::optional<GradBuckets> grads_;  // of the others
  // Of their parameters: held, as a tensor does not hold its own, and the hooks live on them.
  std::vector<std::shared_ptr<torch::autograd::Node>> accumulators_;

  std::optional<at::Device> device_;  // of all parameters
  bool sync_ = true;
  int held_ = 0;              // by NoSyncs
  bool driven_ = false;       // by the executor, which says when to reduce
  bool reduces_now_ = false;  // driven: the last backward before REDUCE_GRAD runs
};

class ReplicatedStage final : public modules::DataParallel {
 public:
  explicit ReplicatedStage(std::shared_ptr<Unit> unit) : unit_(std::move(unit)) {
    unit_->set_driven(true);
  }
  ~ReplicatedStage() override { unit_->set_driven(false); }
  ReplicatedStage(const ReplicatedStage&) = delete;
  ReplicatedStage& operator=(const ReplicatedStage&) = delete;
  void step_begins() override { unit_->prepare_forward(); }
  // Parameters are always whole.
  void unshard() override {}
  void wait_unshard() override {}
  void reshard() override {}
  void before_backward(int /*microbatch*/, bool last) override { unit_->before_backward(last); }
  void reduce_grad() override { unit_->reduce_grad(); }
  void wait_reduce() override { unit_->wait_reduce(); }
  void abort() override { unit_->abort(); }

 private:
  const std::shared_ptr<Unit> unit_;
};

std::shared_ptr<modules::DataParallel> Unit::data_parallel() {
  return std::make_shared<ReplicatedStage>(weak_unit().lock());
}

}  // namespace

std::shared_ptr<Replicated> replicate(const std::vector<torch::nn::Module*>& modules,
                                      comms::BackendPtr group, Options options) {
  const auto unit = std::make_shared<Unit>(modules, std::move(group), std::move(options));
  unit->begin();
  return unit;
}

}  // namespace pipewright::ddp
