// The buckets of gradients: which parameters are in which, and their memory.
#include <ATen/ATen.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

#include "pipewright/comms/agreement.h"
#include "pipewright/ddp/buckets.h"
#include "pipewright/ddp/grad_buckets.h"

namespace pipewright::ddp {

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
      grad = parameters_[index].view;
    }
  }
}

}  // namespace pipewright::ddp
