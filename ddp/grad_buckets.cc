// Greedy assignment: one open bucket per kind, filled in the given order and closed at its limit.
//
// Invariant: within a bucket and within a kind, gradients keep the given order, so the buckets of
// one kind become ready in the order in which they are returned. A gradient is never split: the
// gradient that closes a bucket may exceed its limit, even alone. Complexity: O(n log k) for n
// gradients of k kinds.
#include "pipewright/ddp/grad_buckets.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <stdexcept>
#include <utility>

#include "pipewright/comms/device_event.h"
#include "pipewright/comms/group.h"
#include "pipewright/comms/group_collectives.h"
#include "pipewright/ir/errors.h"

namespace pipewright::ddp {

std::vector<std::vector<size_t>> assign_buckets(std::span<const GradSize> grads,
                                                std::span<const size_t> order, size_t first_bytes,
                                                size_t bytes) {
  struct Open {
    std::vector<size_t> members;
    size_t size = 0;
    bool first = true;  // of its kind
  };
  std::vector<std::vector<size_t>> closed;
  std::map<int, Open> open;  // by kind
  for (const size_t index : order) {
    Open& bucket = open[grads[index].kind];
    bucket.members.push_back(index);
    bucket.size += grads[index].bytes;
    if (bucket.size < (bucket.first ? first_bytes : bytes)) continue;
    closed.push_back(std::exchange(bucket.members, {}));
    bucket.size = 0;
    bucket.first = false;
  }
  for (auto& [kind, bucket] : open) {
    if (!bucket.members.empty()) closed.push_back(std::move(bucket.members));
  }
  return closed;
}

// Bucketed reduction of gradients, after c10d's Reducer.
//
// Idea: every gradient is a view of the flat tensor of its bucket, so a bucket is averaged by one
// call without copies, and starts as soon as its last gradient is ready, while backward still runs.
// Bucket i starts only after buckets 0 to i-1. A cycle is: restart(); grad_ready() for gradients
// and launch_ready() for buckets as they complete; launch_rest() for what is left; finish().
//
// Invariants: the reductions that a rank starts, their order and their sizes follow from the
// parameters and the assignment alone, never from which gradients exist or when they are ready; so
// all ranks start the same ones. Buckets below next_bucket_ have been started exactly once in this
// cycle. Bucket::missing is the number of its parameters that are not ready. A gradient to which
// backward has added is in its bucket.
//
// With mixed precision, backward computes gradients in another dtype than that of .grad, which
// therefore cannot be a view. A hook takes each gradient before autograd accumulates it and adds it
// to the bucket, which is in the dtype of the reduction; the reduced bucket is cast and added to
// .grad, or becomes it, and the next backward allocates another one.
//
// Unused parameters contribute zeros. A second all-reduce counts the ranks that used each of them;
// a parameter that no rank used and that had no .grad has none again.
//
// Complexity: constant time per gradient, plus one copy for a gradient that autograd has allocated
// outside of its bucket. Memory is one copy of the gradients. When buckets are rebuilt, an old
// bucket is freed together with the last gradient in it, so peak memory is one bucket more.

template <typename Error>
void GradBuckets::fail(const std::string& message) {
  throw Error("replicate: " + message);
}

GradBuckets::GradBuckets(std::vector<NamedTensor> parameters, comms::BackendPtr group,
                         Options options)
    : group_(std::move(group)),
      options_(std::move(options)),
      reduce_(options_.comm_hook ? options_.comm_hook : all_reduce_hook()),
      is_mixed_(options_.mixed_precision.param_dtype || options_.mixed_precision.reduce_dtype) {
  const modules::MixedPrecisionPolicy& policy = options_.mixed_precision;
  for (NamedTensor& parameter : parameters) {
    const at::ScalarType dtype = parameter.tensor.scalar_type();
    const bool is_floating = c10::isFloatingType(dtype);
    parameters_.push_back({std::move(parameter.name), std::move(parameter.tensor), dtype,
                           is_floating ? policy.reduce_dtype.value_or(dtype) : dtype});
  }
  make_first_buckets();
}

void GradBuckets::expect_dense(const Parameter& parameter, const at::Tensor& grad) {
  if (!grad.defined() || grad.layout() == at::kStrided) return;
  fail<ContractError>(
      c10::str("parameter `", parameter.name, "`: expected a dense gradient, got ", grad.layout()));
}

void GradBuckets::move_into_bucket(Parameter& parameter) {
  Bucket& bucket = buckets_[parameter.bucket];
  if (!bucket.flat.defined()) allocate(bucket);  // with zeros
  if (is_mixed_) return;
  at::Tensor& grad = parameter.tensor.mutable_grad();
  expect_dense(parameter, grad);
  if (grad.defined() && grad.data_ptr() == parameter.view.data_ptr()) return;
  if (grad.defined())
    parameter.view.copy_(grad);
  else
    parameter.view.zero_();
  grad = parameter.view;
}

void GradBuckets::before_accumulate(size_t i) {
  // A reduction of this bucket, started by an earlier REDUCE_GRAD of the step, may be in flight.
  wait_for(buckets_[parameters_[i].bucket]);
}

at::Tensor GradBuckets::take(size_t i, const at::Tensor& grad) {
  if (!is_mixed_ || !grad.defined()) return grad;
  const c10::NoGradGuard no_grad;
  expect_dense(parameters_[i], grad);
  move_into_bucket(parameters_[i]);
  if (parameters_[i].used)
    parameters_[i].view.add_(grad);
  else
    parameters_[i].view.copy_(grad);
  return {};
}

void GradBuckets::after_accumulate(size_t i) {
  move_into_bucket(parameters_[i]);
  parameters_[i].used = true;
}

void GradBuckets::grad_ready(size_t i) {
  Parameter& parameter = parameters_[i];
  if (parameter.ready) {
    if (parameter.bucket >= next_bucket_) return;
    fail<ContractError>("parameter `" + parameter.name +
                        "` received a gradient after its bucket was reduced: only part of the "
                        "model that uses it is "
                        "checkpointed, or it was used in two backwards at once");
  }
  parameter.ready = true;
  ready_order_.push_back(i);
  --buckets_[parameter.bucket].missing;
}

bool GradBuckets::is_any_unreduced() const {
  return std::ranges::any_of(parameters_, &Parameter::used);
}

void GradBuckets::check_all_ready() { check(&Parameter::ready); }
void GradBuckets::check_all_used() { check(&Parameter::used); }

void GradBuckets::check(bool Parameter::*had) {
  if (options_.find_unused_parameters || group_->getSize() == 1) return;
  std::string missing;
  for (const Parameter& parameter : parameters_) {
    if (!(parameter.*had)) missing += (missing.empty() ? "`" : ", `") + parameter.name + "`";
  }
  if (missing.empty()) return;
  fail<ContractError>("no gradient in this backward for " + missing +
                      ": use all parameters in every forward, or set find_unused_parameters");
}

void GradBuckets::restart() {
  for (Parameter& parameter : parameters_) parameter.ready = false;
  for (Bucket& bucket : buckets_) bucket.missing = bucket.parameters.size();
  next_bucket_ = 0;
  ready_order_.clear();
}

void GradBuckets::begin_backward() {
  if (next_bucket_ > 0) {
    fail<std::runtime_error>(
        "an earlier backward stopped on an error after its reductions had started: ranks may "
        "disagree about them");
  }
  restart();
}

void GradBuckets::forget() {
  for (Bucket& bucket : buckets_) bucket.wait = nullptr;
  for (Parameter& parameter : parameters_) parameter.used = false;
  unused_.reset();
  // Some ranks may have rebuilt their buckets and others not.
  reduced_ = rebuilt_ = false;
  first_order_.clear();
  for (Parameter& parameter : parameters_) parameter.view.reset();
  make_first_buckets();
}

void GradBuckets::launch(Bucket& bucket) {
  wait_for(bucket);
  if (group_->getSize() == 1) {  // only another dtype
    bucket.wait = [] {};
    return;
  }
  try {
    bucket.wait = reduce_(bucket.flat, group_);
  } catch (const std::exception& error) {
    fail_reduction(bucket, error);
  }
  if (!bucket.wait) {
    fail<ContractError>(
        "the comm hook returned null: expected a function that waits for its reduction");
  }
}

void GradBuckets::wait_for(Bucket& bucket) {
  if (!bucket.wait) return;
  try {
    std::exchange(bucket.wait, nullptr)();
  } catch (const std::exception& error) {
    fail_reduction(bucket, error);
  }
  if (is_mixed_) unpack(bucket);
}

// Casts the reduced gradients and adds them to those that exist. A parameter that no rank used
// keeps its .grad.
void GradBuckets::unpack(Bucket& bucket) {
  const c10::NoGradGuard no_grad;
  for (const size_t i : bucket.parameters) {
    Parameter& parameter = parameters_[i];
    const at::Tensor reduced = std::exchange(parameter.view, {});
    if (!is_used_by_any(i)) continue;
    at::Tensor& grad = parameter.tensor.mutable_grad();
    if (grad.defined())
      grad.add_(reduced);
    else
      grad = reduced.to(parameter.dtype);
  }
  comms::use_on_current_stream(bucket.flat);  // autograd's hooks may run on another one
  bucket.flat.reset();
}

void GradBuckets::fail_reduction(const Bucket& bucket, const std::exception& error) {
  const Parameter& first = parameters_[bucket.parameters[0]];
  const std::vector<int> ranks = comms::members_of(*group_);
  fail<std::runtime_error>(
      c10::str("the reduction of `", first.name, "` and ", bucket.parameters.size() - 1,
               " more over ranks ", c10::Join(", ", ranks), " failed on rank ",
               ranks[static_cast<size_t>(group_->getRank())], ": ", error.what()));
}

bool GradBuckets::launch_ready() {
  for (; next_bucket_ < buckets_.size() && buckets_[next_bucket_].missing == 0; ++next_bucket_)
    launch(buckets_[next_bucket_]);
  return is_launched();
}

void GradBuckets::launch_rest() {
  if (!is_needed() || parameters_.empty()) return;
  for (size_t i = next_bucket_; i < buckets_.size(); ++i) wait_for(buckets_[i]);
  if (options_.find_unused_parameters) {
    reset_unused();
    Unused unused;
    const at::Device device = parameters_[0].tensor.device();
    // In page-locked memory, from which a copy to a device does not wait for it.
    const at::Tensor used = at::ones({static_cast<int64_t>(parameters_.size())},
                                     at::TensorOptions(at::kFloat).pinned_memory(!device.is_cpu()));
    for (size_t i = 0; i < parameters_.size(); ++i) {
      if (parameters_[i].ready) continue;
      unused.parameters.push_back(i);
      // Gradients that were only accumulated, without a reduction, count as well.
      unused.had_grad.push_back(is_mixed_ ? parameters_[i].used
                                          : parameters_[i].tensor.grad().defined());
      used[static_cast<int64_t>(i)] = unused.had_grad.back() ? 1 : 0;
    }
    unused.counts = {used.to(device, /*non_blocking=*/true)};
    unused_ = std::move(unused);
  }
  for (Parameter& parameter : parameters_) {
    if (!parameter.ready) move_into_bucket(parameter);
    parameter.used = false;
  }
  for (; next_bucket_ < buckets_.size(); ++next_bucket_) launch(buckets_[next_bucket_]);
  if (!reduced_) first_order_ = ready_order_;
  reduced_ = true;
  restart();
}

void GradBuckets::launch_counts() {
  if (unused_ && group_->getSize() > 1) unused_->work = group_->allreduce(unused_->counts);
}

void GradBuckets::wait_for_counts() {
  if (unused_->work) std::exchange(unused_->work, nullptr)->wait();
  comms::use_on_current_stream(unused_->counts[0]);  // launched on the stream of a backward
}

// Waits for the counts, and copies them to the host.
void GradBuckets::read_counts() {
  if (unused_->is_read) return;
  wait_for_counts();
  unused_->counts[0] = unused_->counts[0].cpu();
  unused_->is_read = true;
}

// Without find_unused_parameters, all are. Only for one that this rank did not use does the host
// wait for the counts.
bool GradBuckets::is_used_by_any(size_t i) {
  if (!unused_) return true;
  const auto unused = std::ranges::lower_bound(unused_->parameters, i);
  if (unused == unused_->parameters.end() || *unused != i) return true;
  const auto k = static_cast<size_t>(unused - unused_->parameters.begin());
  if (unused_->had_grad[k]) return true;
  read_counts();
  return unused_->counts[0][static_cast<int64_t>(i)].item<float>() > 0;
}

// Undoes the zeros: a parameter that no rank used and that had no .grad has none again.
void GradBuckets::reset_unused() {
  if (!unused_) return;
  wait_for_counts();
  for (size_t k = 0; !is_mixed_ && k < unused_->parameters.size(); ++k) {
    Parameter& parameter = parameters_[unused_->parameters[k]];
    if (!unused_->had_grad[k] && !parameter.used && !is_used_by_any(unused_->parameters[k]))
      parameter.tensor.mutable_grad().reset();
  }
  unused_.reset();
}

void GradBuckets::wait_for_all() {
  for (Bucket& bucket : buckets_) wait_for(bucket);
}

void GradBuckets::finish() {
  wait_for_all();
  reset_unused();
  if (reduced_ && !rebuilt_) rebuild(std::exchange(first_order_, {}));
}

// The buckets of gradients: which parameters are in which, and their memory.

// Assumes that backward reaches the parameters in the reverse of their order.
void GradBuckets::make_first_buckets() {
  std::vector<size_t> order(parameters_.size());
  std::iota(order.rbegin(), order.rend(), size_t{0});
  make_buckets(assignment(order));
}

size_t GradBuckets::bytes() const {
  size_t bytes = 0;
  for (const Bucket& bucket : buckets_) bytes += bucket.flat.defined() ? bucket.flat.nbytes() : 0;
  return bytes;
}

std::vector<std::vector<std::string>> GradBuckets::names_by_bucket() const {
  std::vector<std::vector<std::string>> names;
  for (const Bucket& bucket : buckets_) {
    names.emplace_back();
    for (const size_t index : bucket.parameters) names.back().push_back(parameters_[index].name);
  }
  return names;
}

// The parameters of each bucket if they become ready in `order`.
std::vector<std::vector<size_t>> GradBuckets::assignment(const std::vector<size_t>& order) const {
  std::map<std::pair<at::ScalarType, int>, int> kinds;
  std::vector<GradSize> grads;
  for (const Parameter& parameter : parameters_) {
    const std::pair<at::ScalarType, int> kind = {parameter.reduce_dtype,
                                                 parameter.tensor.get_device()};
    grads.push_back(
        {static_cast<size_t>(parameter.tensor.numel()) * c10::elementSize(parameter.reduce_dtype),
         kinds.try_emplace(kind, static_cast<int>(kinds.size())).first->second});
  }
  constexpr double kMiB = 1 << 20;
  return assign_buckets(grads, order, static_cast<size_t>(options_.first_bucket_cap_mb * kMiB),
                        static_cast<size_t>(options_.bucket_cap_mb * kMiB));
}

void GradBuckets::make_buckets(std::vector<std::vector<size_t>> assigned) {
  buckets_.clear();
  for (std::vector<size_t>& members : assigned) {
    for (const size_t index : members) parameters_[index].bucket = buckets_.size();
    buckets_.push_back({{}, std::move(members), 0, nullptr});
  }
  restart();
}

void GradBuckets::allocate(Bucket& bucket) {
  int64_t size = 0;
  for (const size_t index : bucket.parameters) size += parameters_[index].tensor.numel();
  const Parameter& first = parameters_[bucket.parameters[0]];
  bucket.flat = at::zeros({size}, first.tensor.options().dtype(first.reduce_dtype));
  int64_t offset = 0;
  for (const size_t index : bucket.parameters) {
    Parameter& parameter = parameters_[index];
    // Shares the bucket's memory but is not a view for autograd: an optimizer may detach_() it.
    parameter.view = at::empty({0}, bucket.flat.options());
    parameter.view.set_(bucket.flat.storage(), bucket.flat.storage_offset() + offset,
                        parameter.tensor.sizes());
    offset += parameter.tensor.numel();
  }
}

// Assigns buckets again, in the order in which gradients became `ready` on rank 0. Collective.
void GradBuckets::rebuild(const std::vector<size_t>& ready) {
  rebuilt_ = true;
  std::vector<size_t> order = ready;
  std::vector<bool> listed(parameters_.size());
  for (const size_t i : ready) listed[i] = true;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (!listed[i]) order.push_back(i);
  }
  at::Tensor shared = at::empty({static_cast<int64_t>(order.size())}, at::kLong);
  for (size_t i = 0; i < order.size(); ++i)
    shared[static_cast<int64_t>(i)] = static_cast<int64_t>(order[i]);
  shared = shared.to(parameters_[0].tensor.device());
  comms::broadcast_values({shared}, *group_);
  shared = shared.cpu();
  for (size_t i = 0; i < order.size(); ++i)
    order[i] = static_cast<size_t>(shared[static_cast<int64_t>(i)].item<int64_t>());
  std::vector<std::vector<size_t>> assigned = assignment(order);
  if (std::ranges::equal(assigned, buckets_, {}, {}, &Bucket::parameters)) return;
  // Gradients move to their new buckets. From here on only gradients refer to the old buckets, each
  // of which is freed with the last gradient in it.
  for (Parameter& parameter : parameters_) parameter.view.reset();
  make_buckets(std::move(assigned));
  if (is_mixed_) return;  // all gradients have been unpacked
  for (Bucket& bucket : buckets_) {
    allocate(bucket);
    for (const size_t index : bucket.parameters) {
      at::Tensor& grad = parameters_[index].tensor.mutable_grad();
      if (!grad.defined()) continue;
      parameters_[index].view.copy_(grad);
      comms::use_on_current_stream(grad);  // as above
      grad = parameters_[index].view;
    }
  }
}

}  // namespace pipewright::ddp
