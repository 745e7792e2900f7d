// Idea: each tensor has a list of distributions, one per wrapper, in the order of the calls. The
// first one says how the whole tensor is split, the second one how the part that a rank has of it
// is split further, and so on. Gathering goes through the list from its end, splitting from its
// beginning; the wrappers do not know each other.
//
// As a layout over all of their ranks: the part of a part along the same tensor dimension is a
// strided shard, because a rank owns a chunk of each chunk that the earlier wrappers have cut.
#include "pipewright/modules/distribution.h"

#include <ATen/Functions.h>
#include <c10/core/GradMode.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <utility>
#include <vector>

#include "pipewright/comms/group_collectives.h"
#include "pipewright/ir/errors.h"

namespace pipewright::modules {
namespace {

using layout::LocalLayout;
using layout::MeshDim;
using layout::TensorPlacement;

// A distribution, and its owner, which keeps the group.
struct Alive {
  layout::Layout layout;
  int rank;
  c10d::Backend* group;
  std::shared_ptr<Distributor> owner;
};

bool has_dim(const layout::Layout& layout, const std::string& name) {
  return std::ranges::any_of(layout.mesh().dims(),
                             [&](const MeshDim& dim) { return dim.name == name; });
}

// Lists by tensor. A weak reference keeps the address of a tensor from being used again.
class Distributions {
 public:
  void add(const at::Tensor& tensor, Distribution distribution) {
    const std::lock_guard lock(mutex_);
    if (lists_.size() >= purge_at_) {
      std::erase_if(lists_, [](auto& entry) { return entry.second.tensor.expired(); });
      purge_at_ = 2 * lists_.size() + 64;
    }
    List& list = lists_[tensor.unsafeGetTensorImpl()];
    if (list.tensor.expired()) list = {WeakTensor(tensor.getIntrusivePtr()), {}};
    const auto ended = [](const Distribution& each) { return each.owner.expired(); };
    std::erase_if(list.all, ended);
    for (Distribution& each : list.all) {
      for (const MeshDim& dim : distribution.layout.layout.mesh().dims()) {
        if (!has_dim(each.layout.layout, dim.name)) continue;
        each = std::move(distribution);
        return;
      }
    }
    list.all.push_back(std::move(distribution));
  }

  // Those whose owners are alive.
  std::vector<Alive> find(const at::Tensor& tensor) {
    const std::lock_guard lock(mutex_);
    const auto found = lists_.find(tensor.unsafeGetTensorImpl());
    if (found == lists_.end() || found->second.tensor.expired()) return {};
    std::vector<Alive> alive;
    for (const Distribution& each : found->second.all) {
      if (auto owner = each.owner.lock())
        alive.push_back({each.layout.layout, each.layout.rank, each.group, std::move(owner)});
    }
    return alive;
  }

 private:
  using WeakTensor = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;
  struct List {
    WeakTensor tensor{c10::intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>()};
    std::vector<Distribution> all;
  };

  std::mutex mutex_;
  std::map<const c10::TensorImpl*, List> lists_;
  size_t purge_at_ = 64;
};

// LibTorch's tensors have no field for it. Never destroyed: tensors in global variables may outlive
// static objects.
Distributions& distributions() {
  static auto* distributions = new Distributions;
  return *distributions;
}

// The tensor dimension that a wrapper shards.
std::optional<int64_t> sharded_dim(const Alive& distribution) {
  for (const TensorPlacement& placement : distribution.layout.placements()) {
    if (placement.dim()) return *placement.dim();
  }
  return std::nullopt;
}

LocalLayout layout_from(const at::Tensor& tensor, const std::vector<Alive>& list) {
  if (list.empty()) return {layout::Layout(layout::MeshLayout({}), {}, tensor.sizes().vec()), 0};
  std::vector<MeshDim> dims;
  std::vector<TensorPlacement> placements;
  std::map<int, int64_t> pieces;  // by tensor dimension: of the wrappers so far
  int rank = 0, ranks = 1;
  for (const Alive& each : list) {
    const layout::Layout& layout = each.layout;
    const auto mesh = layout.mesh().dims();
    std::vector<TensorPlacement> further;
    std::map<int, int64_t> more = pieces;
    for (size_t i = 0; i < mesh.size(); ++i) {
      const std::optional<int> dim = layout.placements()[i].dim();
      const int64_t before = dim && pieces.contains(*dim) ? pieces.at(*dim) : 1;
      further.push_back(dim ? TensorPlacement::strided_shard(*dim, before)
                            : TensorPlacement::replicate());
      if (dim) more[*dim] = before * mesh[i].size;
    }
    pieces = std::move(more);
    dims.insert(dims.begin(), mesh.begin(), mesh.end());
    placements.insert(placements.begin(), further.begin(), further.end());
    rank += each.rank * ranks;
    ranks *= layout.mesh().size();
  }
  const auto shape = list.front().layout.shape();
  return {layout::Layout(layout::MeshLayout(std::move(dims)), std::move(placements),
                         std::vector<int64_t>(shape.begin(), shape.end())),
          rank};
}

at::IntArrayRef sizes_of(std::span<const int64_t> shape) { return {shape.data(), shape.size()}; }

void store_parts(const std::vector<Alive>& list) {
  for (const Alive& each : list) each.owner->store_parts();
}

void expect_part(const at::Tensor& part, const LocalLayout& layout) {
  const std::vector<int64_t> expected = layout.layout.local_shape(layout.rank);
  if (part.sizes() == at::IntArrayRef(expected)) return;
  throw ContractError(c10::str("full_tensor: expected this rank's part, ",
                               at::IntArrayRef(expected), ", got ", part.sizes()));
}

}  // namespace

LocalLayout layout_of(const at::Tensor& parameter) {
  return layout_from(parameter, distributions().find(parameter));
}

std::map<std::string, LocalLayout> layouts(const torch::nn::Module& module) {
  std::map<std::string, LocalLayout> result;
  const auto add_all = [&](const auto& tensors) {
    for (const auto& named : tensors) {
      if (named.value().defined()) result.emplace(named.key(), layout_of(named.value()));
    }
  };
  add_all(module.named_parameters());
  add_all(module.named_buffers());
  return result;
}

at::Tensor full_tensor(const at::Tensor& parameter) {
  store_parts(distributions().find(parameter));
  return full_tensor(parameter, parameter);
}

at::Tensor full_tensor(const at::Tensor& parameter, const at::Tensor& part) {
  const c10::NoGradGuard no_grad;
  const std::vector<Alive> list = distributions().find(parameter);
  if (part.is_meta()) throw ContractError("full_tensor: expected values, got a meta tensor");
  at::Tensor result = part.detach().clone();
  if (!list.empty()) expect_part(result, layout_from(parameter, list));
  for (auto each = list.rbegin(); each != list.rend(); ++each) {
    const std::optional<int64_t> dim = sharded_dim(*each);
    if (!dim || each->group->getSize() == 1) continue;
    const int64_t length = each->layout.shape()[static_cast<size_t>(*dim)];
    // Shards may be on the host although the group communicates on a device (CPUOffloadPolicy).
    result = result.to(each->group->getBoundDeviceId().value_or(result.device()));
    result = comms::gather_chunks(result, *dim, length, *each->group);
  }
  return result.to(part.device());
}

void set_full_tensor(const at::Tensor& parameter, const at::Tensor& whole) {
  const c10::NoGradGuard no_grad;
  const std::vector<Alive> list = distributions().find(parameter);
  const at::IntArrayRef expected =
      list.empty() ? parameter.sizes() : sizes_of(list.front().layout.shape());
  if (whole.sizes() != expected) {
    throw std::invalid_argument(
        c10::str("set_full_tensor: expected sizes ", expected, ", got ", whole.sizes()));
  }
  store_parts(list);
  at::Tensor part = whole.detach();
  for (const Alive& each : list) {
    if (const std::optional<int64_t> dim = sharded_dim(each))
      part = comms::chunk_of(part, *dim, *each.group);
  }
  if (!list.empty()) expect_part(parameter, layout_from(parameter, list));
  if (parameter.is_meta()) {
    throw ContractError(
        "set_full_tensor: the parameter is on the meta device: call modules::to_empty() first");
  }
  parameter.detach().copy_(part);
}

void distribute(const at::Tensor& tensor, Distribution distribution) {
  distributions().add(tensor, std::move(distribution));
}

bool is_distributed_over(const at::Tensor& tensor, const std::string& dim) {
  return std::ranges::any_of(distributions().find(tensor),
                             [&](const Alive& each) { return has_dim(each.layout, dim); });
}

}  // namespace pipewright::modules
