// Decides when gradients are reduced. GradBuckets owns the gradients of one replicate() call and
// the reductions of its buckets; a ReplicatedUnit, one per call, tells it when to start them.
//
// Idea: hooks report each gradient as autograd accumulates it. Without an executor the root, the
// outermost call, watches for the end of backward: buckets that are complete start at once, and at
// the end the root checks that no gradient is missing, starts the remaining buckets and waits. With
// an executor, its calls of DataParallel decide which backward reduces, when to start the remaining
// buckets and when to wait.
//
// Invariant: all ranks start the same reductions in the same order. By default each call starts its
// buckets as they complete, and all ranks run the same backwards. With unused parameters, or with
// an executor, ranks may reach the calls in different orders; then buckets start in one order over
// all calls, that of for_each. replicate() compares its arguments across ranks before it throws, so
// that no rank waits for one that has thrown.
//
// Complexity: constant time per gradient in one call; launch_in_order() visits the calls of the
// tree for each gradient, up to the first that is not complete.
#include "pipewright/ddp/replicate.h"

#include <c10/util/StringUtil.h>
#include <torch/csrc/autograd/engine.h>

#include <algorithm>
#include <optional>
#include <set>
#include <stdexcept>
#include <utility>

#include "pipewright/autograd/backward_watch.h"
#include "pipewright/autograd/grad_hooks.h"
#include "pipewright/comms/agreement.h"
#include "pipewright/comms/group.h"
#include "pipewright/ddp/grad_buckets.h"
#include "pipewright/ddp/linked_params.h"
#include "pipewright/ir/errors.h"
#include "pipewright/modules/distribution.h"
#include "pipewright/modules/driven_stage.h"
#include "pipewright/modules/forward.h"
#include "pipewright/modules/gradient_sync.h"
#include "pipewright/modules/names.h"
#include "pipewright/modules/unit_tree.h"

namespace pipewright::ddp {
namespace {

std::string describe(const std::string& name, const at::Tensor& tensor) {
  return c10::str(name, ", ", tensor.scalar_type(), " ", tensor.sizes(),
                  tensor.requires_grad() ? "" : ", frozen");
}

// The unit of one replicate() call. Units form a tree, as their modules do; the root stores the
// state of a whole backward.
class ReplicatedUnit final : public Replicated,
                             public autograd::GradListener,
                             public autograd::BackwardWatch,
                             public modules::ForwardHook,
                             public modules::Distributor,
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
          refusal_ = c10::str("replicate: expected all parameters on one device, ", *device_,
                              ", got `", name, "` on ", named.value().device());
        }
        if (const std::shared_ptr<ReplicatedUnit> owner = owner_of(name, named.value()))
          nest(owner->root());
        else
          parameters_.add(name, named.value());
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
      refusal_ = c10::str("replicate: find_unused_parameters differs from that of a nested call: ",
                          "expected ", options_.find_unused_parameters ? "false" : "true", ", got ",
                          options_.find_unused_parameters ? "true" : "false");
    }
  }

  // Completes the construction, once shared_from_this() works. Collective.
  void begin(const std::vector<torch::nn::Module*>& modules) {
    std::vector<std::string> lines;
    lines.push_back(c10::str("options: bucket_cap_mb ", options_.bucket_cap_mb,
                             ", first_bucket_cap_mb ", options_.first_bucket_cap_mb,
                             ", find_unused_parameters ", options_.find_unused_parameters,
                             ", broadcast_buffers ", options_.broadcast_buffers, ", comm_hook ",
                             options_.comm_hook != nullptr));
    std::vector<at::Tensor> values;
    for (size_t i = 0; i < parameters_.size(); ++i) {
      lines.push_back(describe("`" + parameters_.name(i) + "`", parameters_.tensor(i)));
      values.push_back(parameters_.tensor(i));
    }
    for (const auto& [name, tensor] : buffers_) {
      lines.push_back(describe("buffer `" + name + "`", tensor));
      values.push_back(tensor);
    }
    comms::compare_lines(lines, *group_,
                         device_ ? *device_ : group_->getBoundDeviceId().value_or(at::kCPU));
    // Thrown only now, so that no rank waits in compare_lines() for one that has thrown.
    if (!refusal_.empty()) throw std::invalid_argument(refusal_);
    comms::broadcast_values(values, *group_);
    parameters_.set_listener(weak_from_this(), [unit = weak_from_this()](size_t i) {
      if (const auto alive = unit.lock()) alive->check_link(i);
    });
    settle();
    adopt();
    for (const at::Tensor& tensor : values) {
      const comms::Layout layout(comms::MeshLayout({{"dp_replicate", group_->getSize()}}),
                                 {comms::TensorPlacement::replicate()}, tensor.sizes().vec());
      modules::distribute(tensor, {{layout, group_->getRank()}, group_.get(), weak_from_this()});
    }
    for (const torch::nn::Module* module : modules)
      modules::register_forward_hook(*module, shared_from_this());
  }

  void set_requires_gradient_sync(bool sync, bool recurse) override {
    for_each_if(recurse, [sync](ReplicatedUnit& unit) { unit.sync_.set_required(sync); });
  }
  bool requires_gradient_sync() const override { return sync_.is_required(); }
  void hold_sync(int change) override {
    for_each([change](ReplicatedUnit& unit) { unit.sync_.hold(change); });
  }

  // Around a forward. Only the outermost one prepares; neither does the second forward of
  // checkpointing, nor one that an executor runs, whose step has prepared.
  modules::Tensors run(const torch::nn::Module* /*module*/, const Function& forward,
                       modules::Tensors inputs) override {
    const std::shared_ptr<ReplicatedUnit> outermost = root();
    if (outermost->is_in_forward_ || sync_.is_driven() ||
        torch::autograd::get_current_graph_task_id() != -1)
      return forward(inputs);
    end_all_on_error([this] { prepare_forward(); });
    const std::optional<at::Device> device = options_.device ? options_.device : device_;
    for (at::Tensor& input : inputs) {
      if (device && input.defined()) input = input.to(*device, /*non_blocking=*/true);
    }
    const InForward in_forward(*outermost);
    return forward(inputs);
  }

  void prepare_forward() {
    for (const std::shared_ptr<ReplicatedUnit>& unit : nested()) unit->prepare_forward();
    settle();
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

  // Hooks, called on the thread of backward.
  void before_accumulate(size_t parameter) override {
    const std::optional<size_t> grad = parameters_.linked_index(parameter);
    if (grad) end_all_on_error([&] { grads_->before_accumulate(*grad); });
  }
  void after_accumulate(size_t parameter) override {
    if (is_alone()) return;
    const std::optional<size_t> grad = parameters_.linked_index(parameter);
    if (grad) end_all_on_error([&] { accumulated(*grad); });
  }

  // Called by the executor's adapter.
  c10d::Backend* group() const { return group_.get(); }
  void set_driven(bool driven) { sync_.set_driven(driven); }
  modules::GradientSync& gradient_sync() { return sync_; }
  void reduce_all() {
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
    group_->abort();
    grads_->forget();
  }

 private:
  static std::shared_ptr<ReplicatedUnit> owner_of(const std::string& name,
                                                  const at::Tensor& parameter) {
    const auto listener = autograd::listener_of(parameter);
    auto unit = std::dynamic_pointer_cast<ReplicatedUnit>(listener);
    if (listener && !unit) {
      throw std::invalid_argument("replicate: `" + name +
                                  "` is already managed by another data-parallel wrapper, such as "
                                  "fully_shard");
    }
    return unit;
  }

  // Whether this unit or a nested one owns `buffer`.
  bool has(const at::Tensor& buffer) const {
    return std::ranges::any_of(buffers_,
                               [&](const auto& known) { return known.tensor.is_same(buffer); }) ||
           std::ranges::any_of(nested(), [&](const auto& unit) { return unit->has(buffer); });
  }

  // Calls `body`. What it throws ends this step on all ranks, which would wait for this one
  // forever.
  void end_all_on_error(const std::function<void()>& body) {
    try {
      body();
    } catch (const std::exception& error) {
      root()->for_each([](ReplicatedUnit& unit) { unit.grads_->forget(); });
      if (!is_alone()) comms::fail(*group_, error.what());
      throw;
    }
  }

  void accumulated(size_t grad) {
    grads_->after_accumulate(grad);
    if (!sync_.reduces()) return;
    const std::shared_ptr<ReplicatedUnit> outermost = root();
    if (!sync_.is_driven()) outermost->watch(outermost);
    grads_->grad_ready(grad);
    // Ranks that use different parameters, in this microbatch or at all, can only agree on an order
    // that is fixed over all calls.
    if (options_.find_unused_parameters || sync_.is_driven())
      outermost->launch_in_order();
    else
      grads_->launch_ready();
  }

  bool is_alone() const { return group_->getSize() == 1; }

  // The outermost forward runs.
  class InForward {
   public:
    explicit InForward(ReplicatedUnit& root) : root_(root) { root_.is_in_forward_ = true; }
    ~InForward() { root_.is_in_forward_ = false; }
    InForward(const InForward&) = delete;
    InForward& operator=(const InForward&) = delete;

   private:
    ReplicatedUnit& root_;
  };

  // Backward must not leave gradients unreduced.
  void check_link(size_t i) {
    if (is_alone() || parameters_.is_linked(i)) return;
    end_all_on_error([&] {
      throw ContractError("replicate: parameter `" + parameters_.name(i) +
                          "` was cast, moved or unfrozen: expected a call of the module through "
                          "modules::forward() after that");
    });
  }

  // Adopts what users did to the parameters since the last forward: cast, moved, froze or unfroze
  // them. All ranks must do the same. Gradients get new buckets then.
  void settle() {
    if (grads_ && parameters_.are_linked()) return;
    if (grads_ && grads_->is_any_unreduced()) {
      throw ContractError(
          "replicate: parameters were cast, moved, frozen or unfrozen while their gradients were "
          "accumulated: reduce the gradients first");
    }
    std::vector<NamedTensor> trained = parameters_.link();
    if (!trained.empty()) device_ = trained[0].tensor.device();
    grads_.emplace(std::move(trained), group_, options_);
  }

  // Starts complete buckets in the order of for_each, up to the first that is not complete. Returns
  // whether all have been started.
  bool launch_in_order() {
    for (auto unit = nested().rbegin(); unit != nested().rend(); ++unit) {
      if (!(*unit)->launch_in_order()) return false;
    }
    return is_alone() || !sync_.reduces() || grads_->launch_ready();
  }

  // Whether this unit reduces at the end of the current backward, which runs without an executor:
  // it averages gradients and some of its parameters are, or may be, used.
  bool takes_part() const {
    return !is_alone() && requires_gradient_sync() &&
           (options_.find_unused_parameters || grads_->is_any_ready());
  }

  // Called on the root if no executor drives it.
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
    end_all_on_error([&] {
      for (GradBuckets* grads : all) grads->check_all_ready();
      for (GradBuckets* grads : all) grads->launch_rest();
      for (GradBuckets* grads : all) grads->launch_counts();
      for (GradBuckets* grads : all) grads->finish();
    });
  }

  const comms::BackendPtr group_;
  const Options options_;
  std::string refusal_;  // why the modules cannot be replicated; empty if they can
  LinkedParams parameters_;
  std::vector<NamedTensor> buffers_;
  std::optional<GradBuckets> grads_;  // of the parameters that require grad

  std::optional<at::Device> device_;  // of all parameters
  modules::GradientSync sync_;
  bool is_in_forward_ = false;  // of the root
};

// Parameters are always full: there is nothing to gather or free.
class ReplicatedStage final : public modules::DrivenStage<ReplicatedUnit> {
 public:
  using DrivenStage::DrivenStage;

  c10d::Backend* group() const override { return root().group(); }
  void step_begins() override { root().prepare_forward(); }
  void unshard() override {}
  void wait_unshard() override {}
  void reshard() override {}
  void wait_reduce() override { root().wait_reduce(); }

 protected:
  void reduce_all() override { root().reduce_all(); }
};

std::shared_ptr<modules::DataParallel> ReplicatedUnit::data_parallel() {
  return std::make_shared<ReplicatedStage>(shared_from_this());
}

}  // namespace

std::shared_ptr<Replicated> replicate(const std::vector<torch::nn::Module*>& modules,
                                      comms::BackendPtr group, Options options) {
  const auto unit = std::make_shared<ReplicatedUnit>(modules, std::move(group), std::move(options));
  unit->begin(modules);
  return unit;
}

}  // namespace pipewright::ddp
