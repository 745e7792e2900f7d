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
#include "pipewright/modules/driven_stage.h"
#include "pipewright/modules/gradient_sync.h"
#include "pipewright/modules/names.h"
#include "pipewright/modules/unit_tree.h"

namespace pipewright::ddp {
namespace {

std::string describe(const std::string& name, const at::Tensor& tensor) {
  return c10::str(name, ", ", tensor.scalar_type(), " ", tensor.sizes(),
                  tensor.requires_grad() ? "" : ", frozen");
}

// One call: when its gradients are reduced. Calls stand in a tree, as their modules do; what
// concerns a whole backward is kept by the outermost one, the root.
class ReplicatedUnit final : public Replicated,
                             public autograd::GradListener,
                             public autograd::BackwardWatch,
                             public modules::UnitTree<ReplicatedUnit> {
 public:
  ReplicatedUnit(const std::vector<torch::nn::Module*>& modules, comms::BackendPtr group,
                 Options options)
      : group_(std::move(group)), options_(std::move(options)) {
    std::set<at::TensorImpl*> seen;  // a tied weight counts once
    for (size_t i = 0; i < modules.size(); ++i) {
      const std::string path = modules::path_in_list(i, modules.size());
      for (const auto& named : modules[i]->named_parameters()) {
        if (!seen.insert(named.value().unsafeGetTensorImpl()).second) continue;
        if (!device_) device_ = named.value().device();
        const std::string name = modules::join_path(path, named.key());
        if (named.value().device() != *device_) {
          refusal_ = c10::str("replicate: `", name, "` is on ", named.value().device(),
                              ", the first parameter on ", *device_, ": wanted one device");
        }
        if (const std::shared_ptr<ReplicatedUnit> owner = owner_of(name, named.value()))
          nest(owner->root());
        else
          parameters_.push_back({name, named.value()});
      }
      for (const auto& named : modules[i]->named_buffers()) {
        if (named.value().defined() && std::ranges::none_of(nested(), [&](const auto& unit) {
              return unit->has(named.value());
            }))
          buffers_.push_back({modules::join_path(path, named.key()), named.value()});
      }
    }
    for (const std::shared_ptr<ReplicatedUnit>& unit : nested()) {
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
      accumulators_.push_back(autograd::listen(parameter.tensor, weak_from_this(), trained.size()));
      trained.push_back(std::move(parameter));
    }
    grads_.emplace(std::move(trained), group_, options_, [this] {
      root()->for_each([](ReplicatedUnit& unit) { unit.grads_->forget(); });
    });
    adopt();
  }

  void set_requires_gradient_sync(bool sync, bool recurse) override {
    for_each_if(recurse, [sync](ReplicatedUnit& unit) { unit.sync_.set_required(sync); });
  }
  bool requires_gradient_sync() const override { return sync_.is_required(); }
  void hold_sync(int change) override {
    for_each([change](ReplicatedUnit& unit) { unit.sync_.hold(change); });
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
    for (const std::shared_ptr<ReplicatedUnit>& unit : nested()) unit->prepare_forward();
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
  void before_accumulate(size_t parameter) override { grads_->grad_comes(parameter); }
  void after_accumulate(size_t parameter) override {
    if (is_alone()) return;
    grads_->grad_added(parameter);
    if (!sync_.reduces()) return;
    const std::shared_ptr<ReplicatedUnit> outermost = root();
    if (!sync_.is_driven()) outermost->watch(outermost);
    grads_->grad_ready(parameter);
    // Ranks that use different parameters, in a microbatch or at all, only agree on an order that
    // is fixed over all calls.
    if (options_.find_unused_parameters || sync_.is_driven())
      outermost->launch_in_order();
    else
      grads_->launch_ready();
  }

  // Driven by the executor.
  void set_driven(bool driven) { sync_.set_driven(driven); }
  modules::GradientSync& gradient_sync() { return sync_; }
  void reduce_grad() {
    for_each([](ReplicatedUnit& unit) { unit.grads_->check_all_used(); });
    for_each([](ReplicatedUnit& unit) { unit.grads_->launch_rest(); });
    for_each([](ReplicatedUnit& unit) { unit.grads_->launch_counts(); });
  }
  void wait_reduce() {
    for_each([](ReplicatedUnit& unit) {
      unit.grads_->finish();
      unit.sync_.set_last_backward(false);
    });
  }
  void abort() {
    for_each([](ReplicatedUnit& unit) {
      unit.group_->abort();
      unit.grads_->forget();
      unit.sync_.set_last_backward(false);
    });
  }

 private:
  static std::shared_ptr<ReplicatedUnit> owner_of(const std::string& name,
                                                  const at::Tensor& parameter) {
    const auto listener = autograd::listener_of(parameter);
    auto unit = std::dynamic_pointer_cast<ReplicatedUnit>(listener);
    if (listener && !unit) {
      throw std::invalid_argument("replicate: `" + name +
                                  "` is kept by another wrapper, such as fully_shard");
    }
    return unit;
  }

  // Whether a buffer is kept by it or by a nested call.
  bool has(const at::Tensor& buffer) const {
    return std::ranges::any_of(buffers_,
                               [&](const auto& known) { return known.tensor.is_same(buffer); }) ||
           std::ranges::any_of(nested(), [&](const auto& unit) { return unit->has(buffer); });
  }

  bool is_alone() const { return group_->getSize() == 1; }

  // As far as gradients are ready in the order of for_each. Whether all are.
  bool launch_in_order() {
    for (auto unit = nested().rbegin(); unit != nested().rend(); ++unit) {
      if (!(*unit)->launch_in_order()) return false;
    }
    return is_alone() || !sync_.reduces() || grads_->launch_ready();
  }

  // Whether the backward that has run without an executor, here or in a call around it, was one
  // of its parameters.
  bool takes_part() const {
    return !is_alone() && requires_gradient_sync() &&
           (options_.find_unused_parameters || grads_->is_any_ready());
  }

  // Of the root, where nobody drives it.
  void backward_begins() override {
    for_each([](ReplicatedUnit& unit) {
      if (!unit.sync_.is_driven()) unit.grads_->begin_backward();
    });
  }
  bool is_complete() override {
    bool complete = true;
    for_each([&](ReplicatedUnit& unit) {
      complete = complete && (!unit.takes_part() || unit.grads_->is_launched());
    });
    return complete;
  }
  void backward_ends() override {
    std::vector<GradBuckets*> all;
    for_each([&](ReplicatedUnit& unit) {
      if (unit.takes_part()) all.push_back(&*unit.grads_);
    });
    for (GradBuckets* grads : all) grads->check_all_ready();
    for (GradBuckets* grads : all) grads->launch_rest();
    for (GradBuckets* grads : all) grads->launch_counts();
    for (GradBuckets* grads : all) grads->finish();
  }

  const comms::BackendPtr group_;
  const Options options_;
  std::string refusal_;                  // why the modules cannot be replicated
  std::vector<NamedTensor> parameters_;  // until it begins
  std::vector<NamedTensor> frozen_, buffers_;
  std::optional<GradBuckets> grads_;  // of the others
  // Of their parameters: held, as a tensor does not hold its own, and the hooks live on them.
  std::vector<std::shared_ptr<torch::autograd::Node>> accumulators_;

  std::optional<at::Device> device_;  // of all parameters
  modules::GradientSync sync_;
};

// Parameters are always full: there is nothing to gather or free.
class ReplicatedStage final : public modules::DrivenStage<ReplicatedUnit> {
 public:
  using DrivenStage::DrivenStage;

  void step_begins() override { root().prepare_forward(); }
  void unshard() override {}
  void wait_unshard() override {}
  void reshard() override {}
  void reduce_grad() override { root().reduce_grad(); }
  void wait_reduce() override { root().wait_reduce(); }
  void abort() override { root().abort(); }
};

std::shared_ptr<modules::DataParallel> ReplicatedUnit::data_parallel() {
  return std::make_shared<ReplicatedStage>(shared_from_this());
}

}  // namespace

std::shared_ptr<Replicated> replicate(const std::vector<torch::nn::Module*>& modules,
                                      comms::BackendPtr group, Options options) {
  const auto unit = std::make_shared<ReplicatedUnit>(modules, std::move(group), std::move(options));
  unit->begin();
  return unit;
}

}  // namespace pipewright::ddp
