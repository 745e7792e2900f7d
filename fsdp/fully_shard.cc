#include "pipewright/fsdp/fully_shard.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/variable.h>

#include <map>
#include <mutex>
#include <numeric>
#include <set>
#include <stdexcept>
#include <utility>

#include "pipewright/autograd/grad_hooks.h"
#include "pipewright/comms/agreement.h"
#include "pipewright/fsdp/unit.h"

namespace pipewright::fsdp {
namespace {

// Which unit a module belongs to. PyTorch keeps the same at the module; LibTorch's has no place for
// it. Any thread.
class UnitsOfModules {
 public:
  void set(const torch::nn::Module* module, const std::shared_ptr<Unit>& unit) {
    const std::lock_guard lock(mutex_);
    units_[module] = {unit, module->weak_from_this(), !module->weak_from_this().expired()};
  }
  void forget(const torch::nn::Module* module) {
    const std::lock_guard lock(mutex_);
    // Another module may have come to the same address, with a unit that lives.
    const auto found = units_.find(module);
    if (found != units_.end() && found->second.unit.expired()) units_.erase(found);
  }
  std::shared_ptr<Unit> find(const torch::nn::Module* module) {
    const std::lock_guard lock(mutex_);
    const auto found = units_.find(module);
    if (found == units_.end()) return nullptr;
    const Entry& entry = found->second;
    // Another module at the same address is not the one that was sharded.
    return entry.is_owned && entry.module.expired() ? nullptr : entry.unit.lock();
  }
  // Whether a living unit has the tensor in its group.
  bool holds(const at::Tensor& tensor) {
    std::vector<std::shared_ptr<Unit>> units;  // outlives the lock: it may be the last owner
    const std::lock_guard lock(mutex_);
    for (const auto& [module, entry] : units_) {
      if (auto unit = entry.unit.lock()) units.push_back(std::move(unit));
    }
    for (const std::shared_ptr<Unit>& unit : units) {
      for (size_t i = 0; i < unit->group().size(); ++i) {
        if (unit->group().parameter(i).is_same(tensor)) return true;
      }
    }
    return false;
  }

 private:
  struct Entry {
    std::weak_ptr<Unit> unit;
    std::weak_ptr<const torch::nn::Module> module;
    bool is_owned;  // by a shared_ptr
  };
  std::mutex mutex_;
  std::map<const torch::nn::Module*, Entry> units_;
};

UnitsOfModules& units_of_modules() {
  // Never destroyed: a unit in a global may end later.
  static UnitsOfModules* units = new UnitsOfModules;
  return *units;
}

[[noreturn]] void refuse(const std::string& what) {
  throw std::invalid_argument("fully_shard: " + what);
}

std::string joined(const std::string& prefix, const std::string& name) {
  return prefix.empty() ? name : prefix + "." + name;
}

// What a call takes of the modules that it is given.
struct Taken {
  std::vector<ParamSpec> specs;
  std::vector<std::pair<std::string, std::shared_ptr<Unit>>> nested;  // by path
  std::vector<std::pair<std::string, at::Tensor>> buffers;
  std::map<at::TensorImpl*, std::string> names;  // of all parameters, those of nested units too
};

void take(const torch::nn::Module& module, const std::string& path, const Options& options,
          Taken& taken) {
  for (const auto& named : module.named_parameters(/*recurse=*/false)) {
    const at::Tensor& tensor = named.value();
    const std::string name = joined(path, named.key());
    if (!tensor.defined()) continue;
    if (std::ranges::any_of(options.ignored_params,
                            [&](const at::Tensor& ignored) { return ignored.is_same(tensor); }))
      continue;
    const auto [known, is_new] = taken.names.try_emplace(tensor.unsafeGetTensorImpl(), name);
    if (!is_new) {
      // Twice in this group is well.
      if (std::ranges::any_of(
              taken.specs, [&](const ParamSpec& spec) { return spec.parameter.is_same(tensor); }))
        continue;
      refuse("parameter `" + name + "` is also `" + known->second +
             "` of another group: shard both in one call");
    }
    taken.specs.push_back({name, tensor, 0});
  }
  for (const auto& named : module.named_buffers(/*recurse=*/false)) {
    if (named.value().defined())
      taken.buffers.emplace_back(joined(path, named.key()), named.value());
  }
  for (const auto& child : module.named_children()) {
    const std::string child_path = joined(path, child.key());
    if (auto unit = units_of_modules().find(child.value().get())) {
      // Its tensors are looked at too: one may be tied to a parameter here.
      for (const auto& named : child.value()->named_parameters()) {
        const auto [known, is_new] = taken.names.try_emplace(named.value().unsafeGetTensorImpl(),
                                                             joined(child_path, named.key()));
        if (!is_new && std::ranges::any_of(taken.specs, [&](const ParamSpec& spec) {
              return spec.parameter.is_same(named.value());
            }))
          refuse("parameter `" + known->second + "` is also `" + joined(child_path, named.key()) +
                 "` of another group: shard both in one call");
      }
      if (std::ranges::find(taken.nested, unit, &decltype(taken.nested)::value_type::second) ==
          taken.nested.end())
        taken.nested.emplace_back(child_path, std::move(unit));
    } else {
      take(*child.value(), child_path, options, taken);
    }
  }
}

void check(std::vector<ParamSpec>& specs, const Options& options, int ranks) {
  for (ParamSpec& spec : specs) {
    const at::Tensor& tensor = spec.parameter;
    const auto about = [&] {
      return c10::str("parameter `", spec.name, "`, ", tensor.scalar_type(), " ", tensor.sizes(),
                      " on ", tensor.device());
    };
    if (tensor.is_meta()) refuse(about() + ": give it memory first");
    if (tensor.dim() == 0) refuse(about() + ", is a scalar: give it one dimension of size 1");
    if (tensor.layout() != at::kStrided || !tensor.is_contiguous())
      refuse(about() + ", is not contiguous");
    if (!tensor.is_leaf()) refuse(about() + ", is no leaf: it was computed from something");
    if (tensor.scalar_type() != specs[0].parameter.scalar_type() ||
        tensor.device() != specs[0].parameter.device()) {
      refuse(about() + ", is not as `" + specs[0].name +
             "`: wanted one dtype and device in a group; shard the others apart");
    }
    if (units_of_modules().holds(tensor)) refuse(about() + ", is sharded already");
    if (autograd::listener_of(tensor))
      refuse(about() + ", is kept by another wrapper, such as replicate");
    if (options.shard_placement_fn) spec.dim = options.shard_placement_fn(tensor);
    const int64_t dim = spec.dim < 0 ? spec.dim + tensor.dim() : spec.dim;
    if (dim < 0 || dim >= tensor.dim())
      refuse(c10::str(about(), ": it has no dimension ", spec.dim, " to shard along"));
    spec.dim = dim;
    if (dim > 0 && tensor.size(dim) % ranks != 0) {
      refuse(c10::str(about(), ": dimension ", dim, " does not divide evenly by ", ranks,
                      " ranks: only dimension 0 need not"));
    }
  }
}

std::shared_ptr<Sharded> shard(const std::vector<torch::nn::Module*>& modules,
                               comms::BackendPtr group, comms::BackendPtr post_forward,
                               Options options) {
  if (modules.empty()) refuse("no modules");
  std::string refusal;
  Taken taken;
  try {
    for (size_t i = 0; i < modules.size(); ++i) {
      if (units_of_modules().find(modules[i]))
        refuse("a second call for " + modules[i]->name() + ", which is sharded already");
      if (std::ranges::count(modules, modules[i]) > 1)
        refuse(modules[i]->name() + " is given twice");
      take(*modules[i], modules.size() == 1 ? "" : std::to_string(i), options, taken);
    }
    check(taken.specs, options, group->getSize());
    const int ranks = options.reshard_after_forward.ranks(true, group->getSize());
    if (ranks < 1 || group->getSize() % ranks != 0) {
      refuse(c10::str("reshard_after_forward ", ranks, ": wanted a divisor of ", group->getSize(),
                      " ranks"));
    }
    if (ranks > 1 && ranks < group->getSize() && !post_forward)
      refuse(c10::str("reshard_after_forward ", ranks, " makes groups of ranks: wanted a mesh"));
  } catch (const std::exception& error) {  // the placement function's own too
    refusal = error.what();
  }
  std::vector<std::string> lines = {refusal.empty() ? "parameters" : refusal};
  for (const ParamSpec& spec : taken.specs) {
    lines.push_back(c10::str("`", spec.name, "`, ", spec.parameter.scalar_type(), " ",
                             spec.parameter.sizes(), ", along ", spec.dim,
                             spec.parameter.requires_grad() ? "" : ", frozen"));
  }
  for (const auto& [name, buffer] : taken.buffers) {
    lines.push_back(c10::str("buffer `", name, "`, ", buffer.scalar_type(), " ", buffer.sizes()));
  }
  lines.push_back(c10::str("options: sync_module_states ", options.sync_module_states,
                           ", reshard_after_forward ",
                           options.reshard_after_forward.ranks(true, group->getSize()), "|",
                           options.reshard_after_forward.ranks(false, group->getSize()),
                           ", backward_prefetch ", static_cast<int>(options.backward_prefetch)));
  // Where ranks differ, all throw; a refusal is the same on all, or one of those differences.
  comms::compare_lines(lines, *group,
                       taken.specs.empty() || taken.specs[0].parameter.is_meta()
                           ? group->getBoundDeviceId().value_or(at::kCPU)
                           : taken.specs[0].parameter.device());
  if (!refusal.empty()) throw std::invalid_argument(refusal);
  if (options.sync_module_states) {
    std::vector<at::Tensor> values;
    for (const ParamSpec& spec : taken.specs) values.push_back(spec.parameter);
    for (const auto& [name, buffer] : taken.buffers) values.push_back(buffer);
    comms::broadcast_values(values, *group);
  }
  // Autograd's nodes remember the sizes that a parameter has when they are made: the whole ones.
  std::vector<std::shared_ptr<torch::autograd::Node>> accumulators;
  for (const ParamSpec& spec : taken.specs) {
    if (spec.parameter.requires_grad())
      accumulators.push_back(torch::autograd::impl::grad_accumulator(spec.parameter));
  }
  const int ranks = group->getSize();
  ParamGroup params(std::move(taken.specs), std::move(group), std::move(post_forward),
                    modules[0]->name());
  std::vector<std::shared_ptr<Unit>> nested;
  for (const auto& [path, unit] : taken.nested) nested.push_back(unit);
  const auto unit = std::make_shared<Unit>(
      std::vector<const torch::nn::Module*>(modules.begin(), modules.end()), std::move(params),
      ranks, std::move(options), std::move(nested),
      [](const torch::nn::Module* module) { units_of_modules().forget(module); });
  unit->begin();
  for (const auto& [path, inner] : taken.nested) inner->add_prefix(path);
  for (const torch::nn::Module* module : modules) units_of_modules().set(module, unit);
  return unit;
}

}  // namespace

std::shared_ptr<Sharded> fully_shard(const std::vector<torch::nn::Module*>& modules,
                                     comms::BackendPtr group, Options options) {
  return shard(modules, std::move(group), nullptr, std::move(options));
}

std::shared_ptr<Sharded> fully_shard(torch::nn::Module& module, comms::BackendPtr group,
                                     Options options) {
  return shard({&module}, std::move(group), nullptr, std::move(options));
}

std::shared_ptr<Sharded> fully_shard(const std::vector<torch::nn::Module*>& modules,
                                     comms::Mesh& mesh, const std::vector<std::string>& dims,
                                     Options options) {
  comms::BackendPtr group = mesh.group(dims), post_forward;
  const int ranks = options.reshard_after_forward.ranks(true, group->getSize());
  if (ranks > 1 && ranks < group->getSize() && group->getSize() % ranks == 0)
    post_forward = mesh.neighbours(dims, ranks);
  return shard(modules, std::move(group), std::move(post_forward), std::move(options));
}

std::shared_ptr<Sharded> fully_shard(torch::nn::Module& module, comms::Mesh& mesh,
                                     const std::vector<std::string>& dims, Options options) {
  return fully_shard(std::vector{&module}, mesh, dims, std::move(options));
}

std::vector<at::Tensor> call(
    const torch::nn::Module& module,
    const std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)>& function,
    const std::vector<at::Tensor>& inputs) {
  const std::shared_ptr<Unit> unit = units_of_modules().find(&module);
  return unit ? unit->run(&module, function, inputs) : function(inputs);
}

}  // namespace pipewright::fsdp
