#include "pipewright/ddp/replicated_unit.h"

#include <c10/core/GradMode.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <exception>
#include <map>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "pipewright/autograd/checkpoint.h"
#include "pipewright/autograd/hooks.h"
#include "pipewright/comms/group.h"
#include "pipewright/comms/group_collectives.h"
#include "pipewright/comms/threads/threads.h"
#include "pipewright/ir/errors.h"
#include "pipewright/modules/data_parallel.h"
#include "pipewright/modules/reduction.h"
#include "pipewright/modules/unit_tree.h"

namespace pipewright::ddp {
namespace {

std::string describe(const std::string& name, const at::Tensor& tensor) {
  return c10::str(name, ", ", tensor.scalar_type(), " ", tensor.sizes(),
                  tensor.requires_grad() ? "" : ", frozen");
}

std::shared_ptr<ReplicatedUnit> owner_of(const std::string& name, const at::Tensor& parameter) {
  const auto listener = autograd::listener_of(parameter);
  auto unit = std::dynamic_pointer_cast<ReplicatedUnit>(listener);
  if (listener && !unit) {
    throw std::invalid_argument("replicate: `" + name +
                                "` is already managed by another data-parallel wrapper, such as "
                                "fully_shard");
  }
  return unit;
}

// Finds the weights that get sparse gradients, and the names of their modules.
void find_sparse(const torch::nn::Module& module, std::map<at::TensorImpl*, std::string>& found) {
  if (modules::has_sparse_gradient(module)) {
    for (const at::Tensor& weight : module.parameters(/*recurse=*/false))
      found.emplace(weight.unsafeGetTensorImpl(), module.name());
  }
  for (const auto& child : module.children()) find_sparse(*child, found);
}

// The outermost forward runs.
class InForward {
 public:
  explicit InForward(bool& is_in_forward) : is_in_forward_(is_in_forward) { is_in_forward_ = true; }
  ~InForward() { is_in_forward_ = false; }
  InForward(const InForward&) = delete;
  InForward& operator=(const InForward&) = delete;

 private:
  bool& is_in_forward_;
};

}  // namespace

ReplicatedUnit::ReplicatedUnit(const std::vector<torch::nn::Module*>& modules,
                               comms::BackendPtr group, Options options)
    : group_(std::move(group)),
      options_(std::move(options)),
      copies_(options_.mixed_precision.param_dtype),
      generation_(comms::generation_of(*group_)) {
  std::set<at::TensorImpl*> seen;  // a tied weight counts once
  std::map<at::TensorImpl*, std::string> sparse;
  for (size_t i = 0; i < modules.size(); ++i) {
    const std::string path = modules::path_in_list(i, modules.size());
    find_sparse(*modules[i], sparse);
    for (const auto& named : modules[i]->named_parameters()) {
      if (!seen.insert(named.value().unsafeGetTensorImpl()).second) continue;
      if (std::ranges::any_of(options_.ignored_params, [&](const at::Tensor& ignored) {
            return ignored.is_same(named.value());
          }))
        continue;
      const std::string name = modules::join_path(path, named.key());
      if (!device_) device_ = named.value().device();
      if (named.value().device() != *device_) {
        refusal_ = c10::str("replicate: expected all parameters on one device, ", *device_,
                            ", got `", name, "` on ", named.value().device());
      }
      if (const std::shared_ptr<ReplicatedUnit> owner = owner_of(name, named.value())) {
        nest(owner->root());
        continue;
      }
      const auto embedding = sparse.find(named.value().unsafeGetTensorImpl());
      if (named.value().requires_grad() && embedding != sparse.end()) {
        refusal_ = "replicate: parameter `" + name + "` of " + embedding->second +
                   ": expected dense gradients, got the option sparse(true)";
      }
      parameters_.add(name, named.value());
      // A frozen parameter of another wrapper has no owner here, but copies there.
      if (!modules::is_distributed_over(named.value(), "dp_replicate"))
        copies_.add(name, named.value());
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

void ReplicatedUnit::begin(const std::vector<torch::nn::Module*>& modules) {
  // Taken apart, so that one more does not compile before it is compared here or found to be a
  // rank's own. What the list leaves out is in the lines of the parameters.
  const auto& [bucket_cap_mb, first_bucket_cap_mb, find_unused_parameters, broadcast_buffers,
               comm_hook, mixed_precision, ignored_params, device] = options_;
  std::vector<std::string> lines;
  lines.push_back(c10::str("options: bucket_cap_mb ", bucket_cap_mb, ", first_bucket_cap_mb ",
                           first_bucket_cap_mb, ", find_unused_parameters ", find_unused_parameters,
                           ", broadcast_buffers ", broadcast_buffers, ", comm_hook ",
                           comm_hook != nullptr, ", ", modules::to_string(mixed_precision)));
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
    const layout::Layout layout(layout::MeshLayout({{"dp_replicate", group_->getSize()}}),
                                {layout::TensorPlacement::replicate()}, tensor.sizes().vec());
    modules::distribute(tensor, {{layout, group_->getRank()}, group_.get(), weak_from_this()});
  }
  for (const torch::nn::Module* module : modules)
    modules::register_forward_hook(*module, shared_from_this());
}

// Whether this unit or a nested one owns `buffer`.
bool ReplicatedUnit::has(const at::Tensor& buffer) const {
  return std::ranges::any_of(buffers_,
                             [&](const auto& known) { return known.tensor.is_same(buffer); }) ||
         std::ranges::any_of(nested(), [&](const auto& unit) { return unit->has(buffer); });
}

// Backward must not leave gradients unreduced.
void ReplicatedUnit::check_link(size_t i) {
  if (is_alone() || parameters_.is_linked(i)) return;
  end_all_on_error([&] {
    throw ContractError("replicate: parameter `" + parameters_.name(i) +
                        "` was cast, moved or unfrozen: expected a call of the module through "
                        "modules::forward() after that");
  });
}

// Adopts what users did to the parameters since the last forward: cast or moved them, froze or
// unfroze them. All ranks must do the same. Gradients get new buckets then.
void ReplicatedUnit::settle() {
  if (grads_ && parameters_.are_linked()) return;
  if (grads_ && grads_->is_any_unreduced()) {
    throw ContractError(
        "replicate: parameters were cast, moved, frozen or unfrozen while their gradients were "
        "accumulated: reduce the gradients first");
  }
  copies_.end();
  std::vector<NamedTensor> trained = parameters_.link(/*any_dtype=*/copies_.are_used());
  if (!trained.empty()) device_ = trained[0].tensor.device();
  grads_.emplace(std::move(trained), group_, options_);
}

void ReplicatedUnit::unshard() {
  for_each([](ReplicatedUnit& unit) { unit.copies_.begin(); });
}

void ReplicatedUnit::reshard() {
  for_each([](ReplicatedUnit& unit) { unit.copies_.end(); });
}

// After a failure that is reported already.
void ReplicatedUnit::drop_copies() {
  try {
    copies_.end();
  } catch (const ContractError&) {
  }
}

// At the first use after World::reset(): drops what the failed step has left in all units of the
// model, because ranks failed at different places. After a step that an executor ran, abort() has
// done so.
void ReplicatedUnit::recover() {
  if (comms::generation_of(*group_) == generation_) return;
  for_each([](ReplicatedUnit& unit) {
    unit.generation_ = comms::generation_of(*unit.group_);
    if (unit.sync_.is_driven()) return;
    unit.grads_->forget();
    unit.drop_copies();
  });
}

// Around a forward. Only the outermost one prepares; neither does the second forward of
// checkpointing, nor one that an executor runs, whose step has prepared.
modules::Tensors ReplicatedUnit::run(const torch::nn::Module* /*module*/, const Function& forward,
                                     modules::Tensors inputs) {
  const std::shared_ptr<ReplicatedUnit> outermost = root();
  const bool recomputes = autograd::may_be_second_forward();
  const bool is_outermost = !outermost->is_in_forward_ && !sync_.is_driven() && !recomputes;
  if (is_outermost) {
    recover();
    end_all_on_error([this] { prepare_forward(); });
    const std::optional<at::Device> device = options_.device ? options_.device : device_;
    for (at::Tensor& input : inputs) {
      if (device && input.defined()) input = input.to(*device, /*non_blocking=*/true);
    }
  }
  const modules::MixedPrecisionPolicy& policy = options_.mixed_precision;
  if (policy.cast_forward_inputs)
    inputs = modules::cast_floating(std::move(inputs), policy.param_dtype);
  if (!outermost->is_in_forward_) unshard();
  if (recomputes && copies_.are_used() && !sync_.is_driven()) outermost->watch(outermost);
  const Function run_forward = [&](const modules::Tensors& in) {
    modules::Tensors outputs = forward(in);
    for_each([&](const ReplicatedUnit& unit) {
      for (at::Tensor& output : outputs) output = unit.copies_.outlive_end(output);
    });
    return outputs;
  };
  return modules::cast_floating(
      is_outermost ? run_outermost(run_forward, inputs) : run_forward(inputs), policy.output_dtype);
}

modules::Tensors ReplicatedUnit::run_outermost(const Function& forward,
                                               const modules::Tensors& inputs) {
  modules::Tensors outputs;
  try {
    const InForward in_forward(root()->is_in_forward_);
    outputs = forward(inputs);
  } catch (...) {
    for_each([](ReplicatedUnit& unit) { unit.drop_copies(); });
    throw;
  }
  if (c10::GradMode::is_enabled())
    watch_backward_of(outputs);
  else
    reshard();  // no backward follows
  return outputs;
}

void ReplicatedUnit::prepare_forward() {
  for (const std::shared_ptr<ReplicatedUnit>& unit : nested()) unit->prepare_forward();
  settle();
  if (!options_.broadcast_buffers || !sync_.is_required()) return;
  std::vector<at::Tensor> values;
  for (const auto& [name, buffer] : buffers_) values.push_back(buffer);
  comms::broadcast_values(values, *group_);
}

// Decides when gradients are reduced. GradBuckets owns the gradients of one replicate() call and
// the reductions of its buckets; a ReplicatedUnit, one per call, tells it when to start them.
//
// Idea: hooks report each gradient as autograd accumulates it. Without an executor the root, the
// outermost call, watches for the end of backward: buckets that are complete start at once, and at
// the end the root checks that no gradient is missing, starts the remaining buckets and waits. With
// an executor, its calls of DataParallel decide which backward reduces, when to start the remaining
// buckets and when to wait.
//
// Every unit in the outermost call of a forward is expected to take part in the backward through
// its outputs. A unit that a rank does not use at all is then an error there, at the end of that
// backward, and ends the step on the other ranks, which would wait for its reductions.
//
// Invariant: all ranks start the same reductions in the same order. By default each call starts its
// buckets as they complete, and all ranks run the same backwards. With unused parameters, or with
// an executor, ranks may reach the calls in different orders; then buckets start in one order over
// all calls, that of for_each. replicate() compares its arguments across ranks before it throws, so
// that no rank waits for one that has thrown.
//
// Complexity: constant time per gradient in one call; launch_in_order() visits the calls of the
// tree for each gradient, up to the first that is not complete.

namespace {

// Parameters are always full: there is nothing to gather, but with mixed precision there are copies
// to make and to free. A backward on a resharded stage makes them again, which is local.
class ReplicatedStage final : public modules::DrivenStage<ReplicatedUnit> {
 public:
  using DrivenStage::DrivenStage;

  c10d::Backend* group() const override { return root().group(); }
  void step_begins() override { root().prepare_forward(); }
  void unshard() override { root().unshard(); }
  void wait_unshard() override {}
  void reshard() override { root().reshard(); }
  void before_backward(int microbatch, bool last) override {
    root().unshard();
    if (root().shares_autograd_thread()) root().wait_for_buckets();
    DrivenStage::before_backward(microbatch, last);
  }
  void wait_reduce() override { root().wait_reduce(); }

 protected:
  void reduce_all() override { root().reduce_all(); }
};

}  // namespace

std::shared_ptr<modules::DataParallel> ReplicatedUnit::data_parallel() {
  return std::make_shared<ReplicatedStage>(shared_from_this());
}

void ReplicatedUnit::before_accumulate(size_t parameter) {
  root()->recover();  // a plain call's forward has not
  const std::optional<size_t> grad = parameters_.linked_index(parameter);
  if (grad) end_all_on_error([&] { grads_->before_accumulate(*grad); });
}

at::Tensor ReplicatedUnit::take(size_t parameter, const at::Tensor& grad) {
  const std::optional<size_t> index = parameters_.linked_index(parameter);
  if (!index) return grad;
  const std::shared_ptr<ReplicatedUnit> outermost = root();
  if (copies_.are_used() && !sync_.is_driven()) outermost->watch(outermost);
  at::Tensor rest;
  end_all_on_error([&] { rest = grads_->take(*index, grad); });
  return rest;
}

void ReplicatedUnit::after_accumulate(size_t parameter) {
  if (!grads_->is_needed()) return;
  const std::optional<size_t> grad = parameters_.linked_index(parameter);
  if (grad) end_all_on_error([&] { accumulated(*grad); });
}

void ReplicatedUnit::reduce_all() {
  for_each([](ReplicatedUnit& unit) { unit.grads_->check_all_used(); });
  for_each([](ReplicatedUnit& unit) { unit.grads_->launch_rest(); });
  for_each([](ReplicatedUnit& unit) { unit.grads_->launch_counts(); });
}

// Whether ranks are threads of one device: autograd runs all their backwards on one thread, in
// which none can wait for another one's reduction. So they wait before.
bool ReplicatedUnit::shares_autograd_thread() const {
  return comms::is_thread_group(*group_) && device_ && !device_->is_cpu();
}

void ReplicatedUnit::wait_for_buckets() {
  for_each([](ReplicatedUnit& unit) { unit.grads_->wait_for_all(); });
}

void ReplicatedUnit::wait_reduce() {
  for_each([](ReplicatedUnit& unit) {
    unit.grads_->finish();
    unit.sync_.set_last_backward(false);
  });
}

void ReplicatedUnit::abort() {
  group_->abort();
  grads_->forget();
  drop_copies();
}

// The outermost forward has computed `outputs`.
void ReplicatedUnit::watch_backward_of(const modules::Tensors& outputs) {
  bool is_needed = false;
  for_each([&](ReplicatedUnit& unit) {
    is_needed = is_needed || unit.copies_.are_used() || !unit.is_alone();
  });
  if (!is_needed) return;
  for (const at::Tensor& output : outputs) {
    if (!output.defined()) continue;
    autograd::on_backward_of(output, [unit = weak_from_this()] {
      if (const auto alive = unit.lock()) alive->backward_enters();
    });
  }
}

void ReplicatedUnit::backward_enters() {
  if (sync_.is_driven()) return;
  unshard();  // an earlier backward may have freed the copies
  const std::shared_ptr<ReplicatedUnit> outermost = root();
  outermost->watch(outermost);
  if (is_alone() || options_.find_unused_parameters || !sync_.is_required()) return;
  for_each([](ReplicatedUnit& unit) { unit.is_expected_ = true; });
}

// Calls `body`. What it throws ends this step on all ranks, which would wait for this one
// forever.
void ReplicatedUnit::end_all_on_error(const std::function<void()>& body) {
  try {
    body();
  } catch (const std::exception& error) {
    root()->for_each([](ReplicatedUnit& unit) {
      unit.grads_->forget();
      unit.drop_copies();
    });
    if (!is_alone()) comms::fail(*group_, error.what());
    throw;
  }
}

void ReplicatedUnit::accumulated(size_t grad) {
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

// Starts complete buckets in the order of for_each, up to the first that is not complete. Returns
// whether all have been started.
bool ReplicatedUnit::launch_in_order() {
  for (auto unit = nested().rbegin(); unit != nested().rend(); ++unit) {
    if (!(*unit)->launch_in_order()) return false;
  }
  return !grads_->is_needed() || !sync_.reduces() || grads_->launch_ready();
}

// Whether this unit reduces at the end of the current backward, which runs without an executor:
// it averages gradients, and its parameters are expected to be used or some of them are.
bool ReplicatedUnit::takes_part() const {
  return grads_->is_needed() && sync_.is_required() &&
         (options_.find_unused_parameters || is_expected_ || grads_->is_any_ready());
}

// Called on the root if no executor drives it.
void ReplicatedUnit::backward_begins() {
  for_each([](ReplicatedUnit& unit) {
    unit.is_expected_ = false;
    if (!unit.sync_.is_driven()) unit.grads_->begin_backward();
  });
}

bool ReplicatedUnit::is_complete() {
  bool complete = true;
  for_each([&](ReplicatedUnit& unit) {
    complete = complete && (!unit.takes_part() || unit.grads_->is_launched());
  });
  return complete;
}

void ReplicatedUnit::backward_ends() {
  std::vector<GradBuckets*> all;
  for_each([&](ReplicatedUnit& unit) {
    if (unit.takes_part()) all.push_back(&*unit.grads_);
  });
  end_all_on_error([&] {
    for (GradBuckets* grads : all) grads->check_all_ready();
    for (GradBuckets* grads : all) grads->launch_rest();
    for (GradBuckets* grads : all) grads->launch_counts();
    for (GradBuckets* grads : all) grads->finish();
    if (!is_in_forward_) reshard();
  });
}

}  // namespace pipewright::ddp
