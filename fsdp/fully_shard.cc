#include "pipewright/fsdp/fully_shard.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <exception>
#include <map>
#include <stdexcept>
#include <utility>

#include "pipewright/autograd/hooks.h"
#include "pipewright/comms/group_collectives.h"
#include "pipewright/fsdp/event_log.h"
#include "pipewright/fsdp/sharded_unit.h"
#include "pipewright/ir/errors.h"
#include "pipewright/modules/distribution.h"
#include "pipewright/modules/part_guard.h"
#include "pipewright/modules/reduction.h"
#include "pipewright/modules/unit_tree.h"

namespace pipewright::fsdp {
namespace {

[[noreturn]] void refuse(const std::string& what) {
  throw std::invalid_argument("fully_shard: " + what);
}

// The parameters, buffers and nested units that a call of fully_shard finds in its modules.
struct Found {
  std::vector<ParamSpec> specs;                                              // to shard
  std::vector<std::pair<std::string, std::shared_ptr<ShardedUnit>>> nested;  // with their paths
  std::vector<std::pair<std::string, at::Tensor>> buffers;
  std::vector<at::Tensor> ignored;               // parameters
  std::map<at::TensorImpl*, std::string> names;  // of all parameters, also those of nested units

  bool shards(const at::Tensor& tensor) const {
    return std::ranges::any_of(
        specs, [&](const ParamSpec& spec) { return spec.parameter.is_same(tensor); });
  }
};

[[noreturn]] void refuse_tied(const std::string& name, const std::string& other) {
  refuse("parameter `" + name + "` is also `" + other +
         "` of another group: shard both modules in one call");
}

// Collects the parameters and buffers that no nested unit owns, and the nested units.
void collect(const torch::nn::Module& module, const std::string& path, const Options& options,
             Found& found) {
  for (const auto& named : module.named_parameters(/*recurse=*/false)) {
    const at::Tensor& tensor = named.value();
    const std::string name = modules::join_path(path, named.key());
    if (!tensor.defined()) continue;
    if (std::ranges::any_of(options.ignored_params,
                            [&](const at::Tensor& ignored) { return ignored.is_same(tensor); })) {
      found.ignored.push_back(tensor);
      continue;
    }
    if (tensor.requires_grad() && modules::has_sparse_gradient(module)) {
      refuse("parameter `" + name + "` of " + module.name() +
             ": expected dense gradients, got the option sparse(true)");
    }
    const auto [known, is_new] = found.names.try_emplace(tensor.unsafeGetTensorImpl(), name);
    if (is_new)
      found.specs.push_back({name, tensor, 0});
    else if (!found.shards(tensor))  // tied within this group is fine
      refuse_tied(name, known->second);
  }
  for (const auto& named : module.named_buffers(/*recurse=*/false)) {
    if (named.value().defined())
      found.buffers.emplace_back(modules::join_path(path, named.key()), named.value());
  }
  for (const auto& child : module.named_children()) {
    const std::string child_path = modules::join_path(path, child.key());
    auto unit = sharded_modules().find(child.value().get());
    if (!unit) {
      collect(*child.value(), child_path, options, found);
      continue;
    }
    // One of its parameters may be tied to one of this group.
    for (const auto& named : child.value()->named_parameters()) {
      const std::string name = modules::join_path(child_path, named.key());
      const auto [known, is_new] =
          found.names.try_emplace(named.value().unsafeGetTensorImpl(), name);
      if (!is_new && found.shards(named.value())) refuse_tied(known->second, name);
    }
    if (std::ranges::find(found.nested, unit, &decltype(found.nested)::value_type::second) ==
        found.nested.end())
      found.nested.emplace_back(child_path, std::move(unit));
  }
}

bool is_sharded(const at::Tensor& tensor) {
  return std::ranges::any_of(
      sharded_modules().units(), [&](const std::shared_ptr<ShardedUnit>& unit) {
        return std::ranges::any_of(unit->params().params(), [&](const ShardedParam& param) {
          return param.registered.is_same(tensor);
        });
      });
}

// Throws if a parameter cannot be sharded; sets the dimension to shard it along.
void check(std::vector<ParamSpec>& specs, const Options& options, int ranks) {
  auto first = std::ranges::find_if(
      specs, [](const ParamSpec& spec) { return spec.parameter.requires_grad(); });
  if (first == specs.end()) first = specs.begin();
  for (ParamSpec& spec : specs) {
    const at::Tensor& tensor = spec.parameter;
    const auto refuse_this = [&](const std::string& what) {
      refuse(c10::str("parameter `", spec.name, "`, ", tensor.scalar_type(), " ", tensor.sizes(),
                      " on ", tensor.device(), what));
    };
    if (tensor.dim() == 0) refuse_this(", is a scalar: expected at least one dimension");
    if (tensor.layout() != at::kStrided || !tensor.is_contiguous())
      refuse_this(": expected a contiguous tensor");
    if (!tensor.is_leaf()) refuse_this(": expected a leaf, got the result of an operation");
    if (tensor.device() != first->parameter.device() ||
        (tensor.requires_grad() && tensor.scalar_type() != first->parameter.scalar_type())) {
      refuse_this(": expected the dtype and device of `" + first->name +
                  "`, because one group has one device, and one dtype for trainable parameters; "
                  "shard the others separately");
    }
    if (is_sharded(tensor)) refuse_this(", is already sharded");
    if (modules::is_part(tensor, modules::PartKind::kShard))
      refuse_this(", is a shard of a unit that no longer exists: expected the full parameter");
    if (autograd::listener_of(tensor))
      refuse_this(", is already managed by another data-parallel wrapper, such as replicate");
    if (options.shard_placement_fn) spec.dim = options.shard_placement_fn(tensor);
    const int64_t dim = spec.dim < 0 ? spec.dim + tensor.dim() : spec.dim;
    if (dim < 0 || dim >= tensor.dim())
      refuse_this(c10::str(": shard_placement_fn: expected one of its ", tensor.dim(),
                           " dimensions, got ", spec.dim));
    spec.dim = dim;
    if (dim == 0) continue;
    // Parts of a tensor-parallel dimension may be of different sizes: all its ranks decide alike.
    const layout::Layout layout = modules::layout_of(tensor).layout;
    for (int rank = 0; rank < layout.mesh().size(); ++rank) {
      const int64_t size = layout.local_shape(rank)[static_cast<size_t>(dim)];
      if (size % ranks == 0) continue;
      refuse_this(c10::str(
          ": dimension ", dim,
          size == tensor.size(dim) ? std::string()
                                   : ", of " + std::to_string(size) + " elements on other ranks,",
          " does not divide evenly by ", ranks, " ranks; only dimension 0 may be uneven"));
    }
  }
}

// If it throws, `found` contains what it has found so far.
void find_parameters(const std::vector<torch::nn::Module*>& modules, const Options& options,
                     int ranks, bool has_mesh, Found& found) {
  for (size_t i = 0; i < modules.size(); ++i) {
    if (sharded_modules().find(modules[i]))
      refuse("a second call for " + modules[i]->name() + ", which is already sharded");
    if (std::ranges::count(modules, modules[i]) > 1)
      refuse(modules[i]->name() + " appears twice in the list of modules");
    collect(*modules[i], modules::path_in_list(i, modules.size()), options, found);
  }
  check(found.specs, options, ranks);
  const int reshard = options.reshard_after_forward.ranks(/*is_root=*/true, ranks);
  if (reshard < 1 || ranks % reshard != 0) {
    refuse(
        c10::str("reshard_after_forward: expected a divisor of ", ranks, " ranks, got ", reshard));
  }
  if (reshard > 1 && reshard < ranks && !has_mesh) {
    refuse(c10::str("reshard_after_forward ", reshard,
                    " needs groups of that many ranks: expected a mesh, got a process group"));
  }
}

// Describes what must be equal on all ranks, as text. Takes the options apart, so that one more
// does not compile before it is compared here or found to be a rank's own.
std::vector<std::string> describe(const Found& found, const Options& options, int ranks) {
  // What the functions and the list choose is in the lines of the parameters.
  const auto& [reshard, prefetch, auto_wrap_policy, shard_placement_fn, precision, offload,
               ignored_params, sync_states, device] = options;
  std::vector<std::string> lines = {"parameters"};
  for (const ParamSpec& spec : found.specs) {
    lines.push_back(c10::str("`", spec.name, "`, ", spec.parameter.scalar_type(), " ",
                             spec.parameter.sizes(), ", along ", spec.dim,
                             spec.parameter.requires_grad() ? "" : ", frozen",
                             spec.parameter.is_meta() ? ", on meta" : ""));
  }
  for (const auto& [name, buffer] : found.buffers)
    lines.push_back(c10::str("buffer `", name, "`, ", buffer.scalar_type(), " ", buffer.sizes(),
                             buffer.is_meta() ? ", on meta" : ""));
  lines.push_back(c10::str("options: sync_module_states ", sync_states, ", reshard_after_forward ",
                           reshard.ranks(true, ranks), "|", reshard.ranks(false, ranks),
                           ", backward_prefetch ", static_cast<int>(prefetch), ", ",
                           modules::to_string(precision), ", offload_policy ",
                           offload.has_value()));
  return lines;
}

at::Device device_of(const Found& found, const c10d::Backend& group) {
  if (found.specs.empty() || found.specs[0].parameter.is_meta())
    return group.getBoundDeviceId().value_or(at::kCPU);
  return found.specs[0].parameter.device();
}

struct Groups {
  comms::BackendPtr shards = nullptr;        // this rank's parameters are sharded over it
  comms::BackendPtr post_forward = nullptr;  // the smaller one of ReshardAfterForward
  comms::BackendPtr replicas = nullptr;      // the ranks with the same shards; null if alone
};

// Throws on all ranks if they disagree. A rank of `groups.shards` that throws must not leave those
// of `groups.replicas` waiting.
void compare(std::vector<std::string> lines, const Groups& groups, at::Device device) {
  if (!groups.replicas) return comms::compare_lines(lines, *groups.shards, device);
  std::exception_ptr disagreement;
  try {
    comms::compare_lines(lines, *groups.shards, device);
  } catch (const std::invalid_argument& error) {
    disagreement = std::current_exception();
    lines = {error.what()};
  }
  comms::compare_lines(lines, *groups.replicas, device);
  if (disagreement) std::rethrow_exception(disagreement);
}

std::shared_ptr<ShardedUnit> shard(const std::vector<torch::nn::Module*>& modules, Groups groups,
                                   Options options);

// Makes units of the submodules that the policy chooses, inner ones first. The unit around them
// will own them.
std::vector<std::shared_ptr<ShardedUnit>> auto_wrap(const std::vector<torch::nn::Module*>& modules,
                                                    const Groups& groups, Options options) {
  const auto policy = std::exchange(options.auto_wrap_policy, nullptr);
  std::vector<std::shared_ptr<ShardedUnit>> units;
  if (!policy) return units;
  for (const torch::nn::Module* module : modules) {
    const auto inner = module->modules(/*include_self=*/false);
    for (auto each = inner.rbegin(); each != inner.rend(); ++each) {
      if (policy(**each) && !sharded_modules().find(each->get()))
        units.push_back(shard({each->get()}, groups, options));
    }
  }
  return units;
}

std::shared_ptr<ShardedUnit> shard(const std::vector<torch::nn::Module*>& modules, Groups groups,
                                   Options options) {
  const comms::BackendPtr& group = groups.shards;
  if (modules.empty()) refuse("expected at least one module, got none");
  const std::vector<std::shared_ptr<ShardedUnit>> parts = auto_wrap(modules, groups, options);
  Found found;
  std::string refusal;
  try {
    find_parameters(modules, options, group->getSize(), groups.post_forward != nullptr, found);
  } catch (const std::exception& error) {  // also of the placement function
    refusal = error.what();
  }
  // A rank with an error must not leave the others waiting: it takes part in the comparison, in
  // which all ranks then throw, unless all ranks have the same error.
  compare(refusal.empty() ? describe(found, options, group->getSize()) : std::vector{refusal},
          groups, device_of(found, *group));
  if (!refusal.empty()) throw std::invalid_argument(refusal);
  if (options.sync_module_states) {
    std::vector<at::Tensor> values;
    for (const ParamSpec& spec : found.specs) values.push_back(spec.parameter);
    for (const auto& [name, buffer] : found.buffers) values.push_back(buffer);
    std::erase_if(values, [](const at::Tensor& value) { return value.is_meta(); });
    if (groups.replicas) comms::broadcast_values(values, *groups.replicas);
    comms::broadcast_values(values, *group);
  }
  const at::Device device = device_of(found, *group);
  auto offload = options.offload_policy
                     ? std::make_shared<OffloadCopies>(options.offload_policy->pin_memory, device)
                     : nullptr;
  const auto unit = std::make_shared<ShardedUnit>(
      std::vector<const torch::nn::Module*>(modules.begin(), modules.end()),
      ParamGroup(std::move(found.specs), groups.shards, std::move(groups.post_forward),
                 options.mixed_precision, std::move(offload)),
      std::move(groups.replicas), std::move(options));
  std::vector<std::shared_ptr<ShardedUnit>> nested;
  for (const auto& [path, inner] : found.nested) nested.push_back(inner);
  std::vector<at::Tensor> replicated = std::move(found.ignored);
  for (const auto& [name, buffer] : found.buffers) replicated.push_back(buffer);
  unit->begin(nested, replicated);
  for (const auto& [path, inner] : found.nested) inner->add_prefix(path);
  for (const torch::nn::Module* module : modules) {
    sharded_modules().set(module, unit);
    modules::register_forward_hook(*module, unit);
  }
  return unit;
}

std::vector<ShardedUnit*> parts_of(const std::vector<Sharded*>& units) {
  std::vector<ShardedUnit*> parts;
  for (const Sharded* unit : units) parts.push_back(&unit->unit());
  return parts;
}

}  // namespace

Sharded::Sharded(std::shared_ptr<ShardedUnit> unit) : unit_(std::move(unit)) {}

void Sharded::unshard_async() { unit_->unshard_async(); }
void Sharded::wait_unshard() { unit_->wait_unshard(); }
void Sharded::reshard() { unit_->reshard(); }
bool Sharded::is_unsharded() const { return unit_->is_unsharded(); }

void Sharded::set_reshard_after_forward(bool reshard, bool recurse) {
  unit_->for_each_if(recurse,
                     [=](ShardedUnit& unit) { unit.settings().reshard_after_forward = reshard; });
}
void Sharded::set_reshard_after_backward(bool reshard, bool recurse) {
  unit_->for_each_if(recurse,
                     [=](ShardedUnit& unit) { unit.settings().reshard_after_backward = reshard; });
}
void Sharded::set_requires_gradient_sync(bool sync, bool recurse) {
  unit_->for_each_if(recurse, [=](ShardedUnit& unit) { unit.gradient_sync().set_required(sync); });
  set_requires_all_reduce(sync, recurse);
}
void Sharded::set_requires_all_reduce(bool all_reduce, bool recurse) {
  unit_->for_each_if(recurse, [=](ShardedUnit& unit) { unit.settings().all_reduce = all_reduce; });
}
void Sharded::set_all_reduce_hook(std::function<void(const at::Tensor&)> hook) {
  unit_->set_all_reduce_hook(std::move(hook));
}
void Sharded::set_is_last_backward(bool last) { unit_->settings().is_last_backward = last; }
void Sharded::set_unshard_in_backward(bool unshard) {
  unit_->settings().unshard_in_backward = unshard;
}
void Sharded::set_unshard_async_op(bool async_op) {
  unit_->for_each([=](ShardedUnit& unit) { unit.settings().unshard_async_op = async_op; });
}
void Sharded::set_post_optim_event(std::shared_ptr<c10::Event> event) {
  unit_->set_post_optim_event(std::move(event));
}
void Sharded::set_modules_to_forward_prefetch(const std::vector<Sharded*>& units) {
  unit_->settings().forward_prefetch = parts_of(units);
}
void Sharded::set_modules_to_backward_prefetch(const std::vector<Sharded*>& units) {
  unit_->settings().backward_prefetch = parts_of(units);
}
void Sharded::set_gradient_divide_factor(double factor) {
  unit_->set_gradient_divide_factor(factor);
}
void Sharded::set_force_sum_reduction_for_comms(bool force) {
  unit_->set_force_sum_reduction_for_comms(force);
}
void Sharded::set_allocate_memory_from_process_group_for_comm(bool enable) {
  unit_->set_allocates_from_group(enable);
}

std::shared_ptr<modules::DataParallel> Sharded::data_parallel() {
  if (!unit_->is_root()) {
    throw ContractError("fully_shard: data_parallel() of " + unit_->display_name() +
                        ", which is nested in another unit: expected the outermost unit");
  }
  return std::make_shared<ShardedStage>(unit_);
}

std::vector<std::string> Sharded::parameter_names() const {
  std::vector<std::string> names;
  for (const ShardedParam& param : unit_->params().params()) names.push_back(param.name);
  return names;
}
int64_t Sharded::bytes_copied() const { return unit_->bytes_copied(); }

void record_events(const Sharded& unit, std::shared_ptr<EventLog> log) {
  unit.unit().set_event_log(std::move(log));
}

std::shared_ptr<Sharded> fully_shard(const std::vector<torch::nn::Module*>& modules,
                                     comms::BackendPtr group, Options options) {
  return std::make_shared<Sharded>(
      shard(modules, {.shards = std::move(group)}, std::move(options)));
}

std::shared_ptr<Sharded> fully_shard(torch::nn::Module& module, comms::BackendPtr group,
                                     Options options) {
  return fully_shard(std::vector{&module}, std::move(group), std::move(options));
}

std::shared_ptr<Sharded> fully_shard(const std::vector<torch::nn::Module*>& modules,
                                     comms::Mesh& mesh, const std::vector<std::string>& dims,
                                     Options options) {
  if (dims.empty() || dims.size() > 2) {
    refuse(c10::str("expected a mesh dimension to shard over, or one to replicate over and one to ",
                    "shard over, got ", dims.size(), " dimensions"));
  }
  const std::vector<std::string> sharded = {dims.back()};
  Groups groups = {.shards = mesh.group(sharded)};
  if (dims.size() == 2 && mesh.size(dims[0]) > 1) groups.replicas = mesh.group({dims[0]});
  const int all = groups.shards->getSize();
  const int ranks = options.reshard_after_forward.ranks(true, all);
  if (ranks > 1 && ranks < all && all % ranks == 0)
    groups.post_forward = mesh.neighbours(sharded, ranks);
  return std::make_shared<Sharded>(shard(modules, std::move(groups), std::move(options)));
}

std::shared_ptr<Sharded> fully_shard(torch::nn::Module& module, comms::Mesh& mesh,
                                     const std::vector<std::string>& dims, Options options) {
  return fully_shard(std::vector{&module}, mesh, dims, std::move(options));
}

void share_comm_ctx(const std::vector<Sharded*>& units) {
  for (Sharded* unit : units) {
    ShardedUnit& root = unit->unit();
    if (!root.is_root()) {
      throw ContractError("fully_shard: share_comm_ctx of " + root.display_name() +
                          ", which is nested in another unit: expected outermost units");
    }
    root.share_gather_stream(units[0]->unit());
  }
}

}  // namespace pipewright::fsdp
