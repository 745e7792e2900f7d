// Idea: everything is an entry, this rank's part of a tensor of the whole model with its layout.
// The layout says which boxes the part has, so saving lists the boxes of which this rank is the
// first owner, and loading asks for all of them. The optimizer's tensors have the layouts of their
// parameters. The optimizer makes its state in its first step, so loading makes new state and hands
// it over at the end.
//
// Complexity: linear in the number of tensors and their bytes. snapshot() copies nothing that
// is contiguous on the CPU; loading reads straight into such tensors.
#include "pipewright/checkpoint/torch/training_state.h"

#include <ATen/ATen.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/StringUtil.h>
#include <torch/csrc/autograd/grad_mode.h>

#include <algorithm>
#include <set>
#include <stdexcept>
#include <utility>

#include "pipewright/checkpoint/torch/optimizer_state.h"
#include "pipewright/ir/errors.h"
#include "pipewright/layout/boxes.h"

namespace pipewright::checkpoint {
namespace {

constexpr const char* kOptimizer = "optim.";
constexpr const char* kState = "optim.state.";
constexpr const char* kGroups = "optim.param_groups.";
constexpr const char* kKind = "optim.name";

// A tensor that is not distributed.
layout::LocalLayout whole(const at::Tensor& tensor) {
  return {layout::Layout(layout::MeshLayout({}), {}, tensor.sizes().vec()), 0};
}

// Whether these are two copies of one part, as tied parameters are.
bool are_replicas(const layout::LocalLayout& a, const layout::LocalLayout& b) {
  return a.layout == b.layout && a.rank != b.rank &&
         a.layout.boxes(a.rank) == b.layout.boxes(b.rank);
}

// A scalar that each rank has that has the tensor.
layout::LocalLayout scalar_beside(const layout::LocalLayout& where) {
  const std::vector<layout::TensorPlacement> replicas(where.layout.placements().size(),
                                                      layout::TensorPlacement::replicate());
  return {layout::Layout(where.layout.mesh(), replicas, {}), where.rank};
}

// What this rank has of a tensor: its boxes, and the views of the local tensor that are these.
struct LocalBox {
  Box box;
  at::Tensor view;
};
std::vector<LocalBox> local_boxes(const at::Tensor& tensor, const layout::LocalLayout& where) {
  const std::vector<Box> boxes = where.layout.boxes(where.rank);
  std::vector<LocalBox> result;
  for (const Box& box : boxes) {
    at::Tensor view = tensor.detach();
    for (size_t dim = 0; dim < box.begin.size(); ++dim) {
      // The local tensor has the boxes put together: those before come first.
      std::set<std::pair<int64_t, int64_t>> before;
      for (const Box& other : boxes) {
        if (other.begin[dim] < box.begin[dim]) before.emplace(other.begin[dim], other.sizes[dim]);
      }
      int64_t begin = 0;
      for (const auto& [first, size] : before) begin += size;
      view = view.narrow(static_cast<int64_t>(dim), begin, box.sizes[dim]);
    }
    result.push_back({box, std::move(view)});
  }
  return result;
}

// Memory for a copy, as the tensor `index` of a snapshot: that of `reused` if it fits. Page-locked
// for a tensor on a device: only then does a copy not block the host.
at::Tensor memory_like(const at::Tensor& tensor, size_t index, const StateSnapshot& reused) {
  if (index < reused.memory.size()) {
    const at::Tensor& old = reused.memory[index];
    if (old.sizes() == tensor.sizes() && old.scalar_type() == tensor.scalar_type()) return old;
  }
  return at::empty(tensor.sizes(),
                   tensor.options().device(at::kCPU).pinned_memory(!tensor.is_cpu()));
}

std::span<std::byte> bytes_of(const at::Tensor& contiguous) {
  return {static_cast<std::byte*>(contiguous.data_ptr()), contiguous.nbytes()};
}

void check_shape(const std::string& name, const at::Tensor& tensor,
                 const layout::LocalLayout& where) {
  const std::vector<int64_t> local = where.layout.local_shape(where.rank);
  if (tensor.sizes() == at::IntArrayRef(local)) return;
  throw ContractError(c10::str("checkpoint: tensor `", name, "`: expected this rank's part, ",
                               at::IntArrayRef(local), ", got ", tensor.sizes(),
                               ": save and load modules between steps, while they are sharded"));
}

// Places that read into tensors: at once where their memory allows it, otherwise by finish().
class Places {
 public:
  void add(const std::string& name, const at::Tensor& tensor, const layout::LocalLayout& where) {
    const DType dtype = stored_dtype(tensor, name);
    const std::vector<int64_t> shape(where.layout.shape().begin(), where.layout.shape().end());
    const std::vector<LocalBox> boxes = local_boxes(tensor, where);
    // A rank without a part names the tensor too.
    if (boxes.empty()) {
      const std::vector<int64_t> zeros(shape.size(), 0);
      places_.push_back({name, dtype, shape, {zeros, zeros}, {}});
    }
    for (const auto& [box, view] : boxes) {
      at::Tensor memory = view;
      if (!view.is_contiguous() || !view.is_cpu()) {
        memory = at::empty(view.sizes(), view.options().device(at::kCPU));
        copies_.emplace_back(view, memory);
      }
      places_.push_back({name, dtype, shape, box, bytes_of(memory)});
    }
  }
  const std::vector<TensorPlace>& all() const { return places_; }
  void finish() const {
    for (const auto& [to, from] : copies_) to.copy_(from);
  }

 private:
  std::vector<TensorPlace> places_;
  std::vector<std::pair<at::Tensor, at::Tensor>> copies_;  // to, from
};

// The options of each parameter group in a manifest. Throws if there are others.
std::vector<GroupOptions> group_options(const std::map<std::string, std::string>& state,
                                        const OptimizerKind& kind, size_t groups) {
  const auto saved = state.find(kKind);
  const std::string name = saved == state.end() ? "none" : saved->second;
  if (name != kind.name())
    throw std::runtime_error(
        c10::str("the optimizer of the checkpoint: expected ", kind.name(), ", got ", name));
  std::vector<GroupOptions> result(groups);
  const std::string prefix = kGroups;
  for (auto entry = state.lower_bound(prefix);
       entry != state.end() && entry->first.starts_with(prefix); ++entry) {
    const std::string rest = entry->first.substr(prefix.size());
    const size_t dot = std::min(rest.find('.'), rest.size() - 1);
    size_t group = 0;
    while (group < groups && std::to_string(group) != rest.substr(0, dot)) ++group;
    if (group == groups)
      throw std::runtime_error(c10::str("the checkpoint has `", entry->first, "`: expected ",
                                        groups, " parameter groups"));
    result[group].emplace(rest.substr(dot + 1), entry->second);
  }
  for (size_t group = 0; group < groups; ++group) {
    if (result[group].empty())
      throw std::runtime_error(c10::str("the checkpoint has no `", prefix, group, "`: expected ",
                                        groups, " parameter groups"));
  }
  return result;
}

}  // namespace

void TrainingState::add_module(const torch::nn::Module& module,
                               const std::map<std::string, layout::LocalLayout>& layouts,
                               const std::string& prefix,
                               const std::map<std::string, std::string>& tied) {
  std::map<std::string, std::string> unused = tied;
  const size_t before = entries_.size();
  const auto add_all = [&](const auto& tensors, bool are_buffers) {
    for (const auto& named : tensors) {
      if (!named.value().defined()) continue;
      const auto found = layouts.find(named.key());
      const auto tie = unused.extract(named.key());
      Entry entry{tie.empty() ? prefix + named.key() : tie.mapped(), named.value(),
                  found == layouts.end() ? whole(named.value()) : found->second, are_buffers};
      if (entry.name.starts_with(kOptimizer))
        throw std::invalid_argument("checkpoint: tensor `" + entry.name +
                                    "`: expected a name that does not begin with `optim.`");
      stored_dtype(entry.tensor, entry.name);
      check_shape(entry.name, entry.tensor, entry.where);
      const auto [first, is_new] = by_name_.emplace(entry.name, entries_.size());
      // Not a copy, but the same tensor under another name in the module.
      if (!is_new && first->second >= before &&
          entries_[first->second].tensor.is_same(entry.tensor))
        continue;
      if (!is_new && !are_replicas(entries_[first->second].where, entry.where))
        throw std::invalid_argument("checkpoint: expected different names, got `" + entry.name +
                                    "` twice");
      by_tensor_.emplace(entry.tensor.unsafeGetTensorImpl(), entries_.size());
      entries_.push_back(std::move(entry));
    }
  };
  add_all(module.named_parameters(), false);
  add_all(module.named_buffers(), true);
  if (!unused.empty())
    throw std::invalid_argument("checkpoint: the module has no tied parameter `" +
                                unused.begin()->first + "`");
}

void TrainingState::set_optimizer(torch::optim::Optimizer& optimizer) {
  kind_of(optimizer);
  for (const auto& group : optimizer.param_groups()) {
    for (const at::Tensor& parameter : group.params()) entry_of(parameter);
  }
  optimizer_ = &optimizer;
}

const TrainingState::Entry& TrainingState::entry_of(const at::Tensor& parameter) const {
  const auto found = by_tensor_.find(parameter.unsafeGetTensorImpl());
  if (found == by_tensor_.end())
    throw std::invalid_argument(c10::str("checkpoint: the optimizer has a parameter of sizes ",
                                         parameter.sizes(),
                                         ": expected those of modules that were added before"));
  return entries_[found->second];
}

void TrainingState::add_parts(const Entry& entry, Copy how, const StateSnapshot& reused,
                              StateSnapshot& snapshot) {
  // Not a structured binding: clang 14 cannot capture those.
  const std::string& name = entry.name;
  const at::Tensor& tensor = entry.tensor;
  const layout::LocalLayout& where = entry.where;
  check_shape(name, tensor, where);
  const std::vector<int64_t> shape(where.layout.shape().begin(), where.layout.shape().end());
  const auto add = [&](const Box& box, const at::Tensor& view) {
    at::Tensor memory = how == Copy::kNever || view.is_cpu() ? view.cpu().contiguous() : view;
    if (how != Copy::kNever && memory.is_alias_of(view)) {
      const at::Tensor copy = memory_like(memory, snapshot.memory.size(), reused);
      if (how == Copy::kDeferred && !entry.is_buffer)
        snapshot.uncopied.emplace_back(copy, memory);
      else
        copy.copy_(memory, /*non_blocking=*/true);
      memory = copy;
    }
    snapshot.memory.push_back(memory);
    snapshot.snapshot.parts.push_back(
        {name, stored_dtype(tensor, name), shape, box, bytes_of(memory), where.layout.text()});
  };
  for (const auto& [box, view] : local_boxes(tensor, where)) {
    if (where.layout.owners(box.begin).front() == where.rank) add(box, view);
  }
  // A tensor without elements is nobody's box.
  if (volume(layout::whole_box(shape)) == 0 && where.rank == 0)
    add(layout::whole_box(shape), tensor.detach());
}

void StateSnapshot::copy() {
  const torch::NoGradGuard no_grad;
  if (copied) {
    const c10::OptionalDeviceGuard guard(copied->device());  // this may be any thread
    copied->synchronize();
    copied.reset();
  }
  for (const auto& [to, from] : std::exchange(uncopied, {}))
    if (from.is_cpu()) to.copy_(from);
}

StateSnapshot TrainingState::snapshot() const { return take(Copy::kNever, {}); }

StateSnapshot TrainingState::copied_snapshot(StateSnapshot reused) const {
  return take(Copy::kAtOnce, reused);
}

StateSnapshot TrainingState::deferred_snapshot(StateSnapshot reused) const {
  return take(Copy::kDeferred, reused);
}

StateSnapshot TrainingState::take(Copy how, const StateSnapshot& reused) const {
  const torch::NoGradGuard no_grad;
  StateSnapshot result;
  for (const Entry& entry : entries_) add_parts(entry, how, reused, result);
  if (optimizer_) add_optimizer(how, reused, result);
  const auto on_device =
      std::ranges::find_if(entries_, [](const Entry& entry) { return !entry.tensor.is_cpu(); });
  if (how == Copy::kNever || on_device == entries_.end()) return result;
  // What copies beside the current stream begins after what that has been given so far.
  const c10::Device device = on_device->tensor.device();
  const c10::impl::VirtualGuardImpl streams(device.type());
  c10::Stream stream = streams.getStream(device);
  result.copied.emplace(device.type());
  result.copied->record(stream);
  if (how == Copy::kAtOnce) {
    result.copy();
    return result;
  }
  stream = streams.getStreamFromGlobalPool(device);
  result.copied->block(stream);
  const c10::StreamGuard beside(stream);
  for (const auto& [to, from] : result.uncopied)
    if (!from.is_cpu()) to.copy_(from, /*non_blocking=*/true);
  result.copied->record(stream);
  return result;
}

void TrainingState::add_optimizer(Copy how, const StateSnapshot& reused,
                                  StateSnapshot& result) const {
  const OptimizerKind& kind = kind_of(*optimizer_);
  result.snapshot.state[kKind] = kind.name();
  size_t index = 0;
  std::set<const c10::TensorImpl*> seen;  // Module::parameters() has a tensor once for each name
  for (const auto& group : optimizer_->param_groups()) {
    for (const auto& [option, text] : kind.options(group.options()))
      result.snapshot.state[c10::str(kGroups, index, ".", option)] = text;
    ++index;
    for (const at::Tensor& parameter : group.params()) {
      const auto state = optimizer_->state().find(parameter.unsafeGetTensorImpl());
      if (state == optimizer_->state().end()) continue;
      if (!seen.insert(parameter.unsafeGetTensorImpl()).second) continue;
      const Entry& owner = entry_of(parameter);
      for (const auto& [key, tensor] : kind.tensors(*state->second)) {
        const bool is_scalar = key == "step";
        add_parts({kState + owner.name + "." + key, tensor,
                   is_scalar ? scalar_beside(owner.where) : owner.where},
                  how, reused, result);
      }
    }
  }
}

void TrainingState::load_weights(const StoredCheckpoint& checkpoint,
                                 const Exchange& exchange) const {
  TrainingState weights = *this;
  weights.optimizer_ = nullptr;
  weights.load(checkpoint, exchange);
}

void TrainingState::load(const StoredCheckpoint& checkpoint, const Exchange& exchange) {
  const torch::NoGradGuard no_grad;
  Places places;
  std::map<c10::TensorImpl*, ParamState> loaded;  // by parameter; empty: it has no state
  std::vector<GroupOptions> options;              // by parameter group; empty: as they are
  const auto add_optimizer = [&] {
    const OptimizerKind& kind = kind_of(*optimizer_);
    if (checkpoint.manifest()) {
      options =
          group_options(checkpoint.manifest()->state, kind, optimizer_->param_groups().size());
      for (size_t group = 0; group < options.size(); ++group)  // are they valid?
        kind.set_options(*optimizer_->param_groups()[group].options().clone(), options[group]);
    }
    for (const auto& group : optimizer_->param_groups()) {
      const std::vector<std::string> keys = kind.keys(group.options());
      for (const at::Tensor& parameter : group.params()) {
        const Entry& owner = entry_of(parameter);
        const std::string prefix = kState + owner.name + ".";
        const auto [entry, is_new] = loaded.try_emplace(parameter.unsafeGetTensorImpl());
        if (!is_new) continue;
        ParamState& state = entry->second;
        const bool may_have_none = checkpoint.manifest() || !parameter.requires_grad();
        if (may_have_none && std::ranges::none_of(keys, [&](const std::string& key) {
              return checkpoint.tensors().contains(prefix + key);
            }))
          continue;
        for (const std::string& key : keys) {
          const bool is_scalar = key == "step";
          at::Tensor tensor =
              is_scalar ? at::zeros({}, at::kFloat)
                        : at::zeros(parameter.sizes(), parameter.options().requires_grad(false));
          places.add(prefix + key, tensor, is_scalar ? scalar_beside(owner.where) : owner.where);
          state.emplace(key, std::move(tensor));
        }
      }
    }
  };
  agree(exchange, [&]() -> std::string {
    for (const Entry& entry : entries_) {
      check_shape(entry.name, entry.tensor, entry.where);
      places.add(entry.name, entry.tensor, entry.where);
    }
    if (optimizer_) add_optimizer();
    return "";
  });
  const auto is_ignored = [&](const std::string& name) {
    return !optimizer_ && name.starts_with(kOptimizer);
  };
  checkpoint::load(checkpoint, places.all(), is_ignored, exchange);
  places.finish();
  if (!optimizer_) return;
  const OptimizerKind& kind = kind_of(*optimizer_);
  for (const auto& [parameter, state] : loaded) {
    if (state.empty())
      optimizer_->state().erase(parameter);
    else
      optimizer_->state()[parameter] = kind.state(state);
  }
  for (size_t group = 0; group < options.size(); ++group)
    kind.set_options(optimizer_->param_groups()[group].options(), options[group]);
}

}  // namespace pipewright::checkpoint
