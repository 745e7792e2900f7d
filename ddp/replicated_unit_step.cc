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
#include <algorithm>
#include <exception>
#include <stdexcept>
#include <string>
#include <vector>

#include "pipewright/autograd/output_hook.h"
#include "pipewright/comms/group.h"
#include "pipewright/comms/threads.h"
#include "pipewright/ddp/replicated_unit.h"
#include "pipewright/modules/driven_stage.h"

namespace pipewright::ddp {
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

void ReplicatedUnit::set_requires_gradient_sync(bool sync, bool recurse) {
  for_each_if(recurse, [sync](ReplicatedUnit& unit) { unit.sync_.set_required(sync); });
}

void ReplicatedUnit::hold_sync(int change) {
  for_each([change](ReplicatedUnit& unit) { unit.sync_.hold(change); });
}

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

// Of ranks that are threads of one device: autograd runs all their backwards on one thread, in
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
  if (is_alone() || options_.find_unused_parameters || !requires_gradient_sync()) return;
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
  return grads_->is_needed() && requires_gradient_sync() &&
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
