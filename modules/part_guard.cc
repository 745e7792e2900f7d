// The dispatcher runs the fallback of the key with the highest priority among all arguments. For
// kKey that is run_with_parts(), which looks at the arguments, runs the operator without the key,
// and marks what a cast returns. Names are found by storage and offset, so views of a shard are
// found too; an entry keeps the storage's address from being used again (a weak reference) and ends
// with the storage.
#include "pipewright/modules/part_guard.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <map>
#include <mutex>
#include <string_view>
#include <utility>
#include <vector>

#include "pipewright/ir/errors.h"

namespace pipewright::modules {
namespace {

// LibTorch 2.11 has no kernels for it.
constexpr c10::DispatchKey kKey = c10::DispatchKey::DeferredInit;

class Names {
 public:
  struct Part {
    PartKind kind;
    std::string name;
  };

  void set(const at::Tensor& shard, PartKind kind, const std::string& name) {
    const std::lock_guard lock(mutex_);
    if (names_.size() >= purge_at_) {
      std::erase_if(names_, [](const auto& entry) { return entry.second.storage.expired(); });
      purge_at_ = 2 * names_.size() + 64;
    }
    names_.insert_or_assign(place_of(shard), Entry{weak_storage_of(shard), {kind, name}});
  }
  Part find(const at::Tensor& shard) {
    const std::lock_guard lock(mutex_);
    auto found = names_.upper_bound(place_of(shard));
    if (found == names_.begin()) return {PartKind::kShard, ""};
    --found;
    if (found->first.first != place_of(shard).first) return {PartKind::kShard, ""};
    return found->second.part;
  }

 private:
  using Place = std::pair<const c10::StorageImpl*, int64_t>;
  using WeakStorage = c10::weak_intrusive_ptr<c10::StorageImpl>;
  struct Entry {
    WeakStorage storage;
    Part part;
  };
  static Place place_of(const at::Tensor& tensor) {
    return {tensor.storage().unsafeGetStorageImpl(), tensor.storage_offset()};
  }
  static WeakStorage weak_storage_of(const at::Tensor& tensor) {
    return WeakStorage(c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(
        tensor.storage().unsafeGetStorageImpl()));
  }

  std::mutex mutex_;
  std::map<Place, Entry> names_;
  size_t purge_at_ = 64;
};

// Never destroyed: tensors in global variables may outlive static objects.
Names& names() {
  static auto* names = new Names;
  return *names;
}

// These move or combine shards without computing with them.
bool takes_any_shape(std::string_view op) {
  constexpr std::array kOps = {"aten::cat",     "aten::stack",
                               "aten::copy_",   "aten::set_",
                               "aten::view_as", "aten::_has_compatible_shallow_copy_type"};
  // Optimizers; _fused_adam_, _fused_adamw_ and _fused_adagrad_.
  const bool updates = op.starts_with("aten::_foreach") || op.starts_with("aten::_fused_ada") ||
                       op.starts_with("aten::_fused_sgd");
  return updates || std::ranges::find(kOps, op) != kOps.end();
}

// Casts and moves.
bool converts(std::string_view op) { return op == "aten::to" || op == "aten::_to_copy"; }

void run_with_parts(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
  std::vector<at::Tensor> tensors;
  for (const c10::IValue& value : torch::jit::last(*stack, op.schema().arguments().size())) {
    if (value.isTensor()) {
      tensors.push_back(value.toTensor());
    } else if (value.isList()) {
      for (const c10::IValue& each : value.toListRef()) {
        if (each.isTensor()) tensors.push_back(each.toTensor());
      }
    }
  }
  std::erase_if(tensors, [](const at::Tensor& tensor) { return !tensor.defined(); });
  const auto shard = std::ranges::find_if(tensors, is_guarded);
  if (shard != tensors.end() && !takes_any_shape(op.schema().name()) &&
      std::ranges::any_of(tensors, [&](const at::Tensor& tensor) {
        return tensor.dim() > 0 && tensor.sizes() != shard->sizes();
      })) {
    // Backward of a split module reads its weights.
    const Names::Part part = names().find(*shard);
    const bool is_split = part.kind == PartKind::kSplit;
    if (!is_split || !torch::autograd::get_current_node()) {
      throw ContractError(c10::str(is_split ? "parallelize: " : "fully_shard: ", op.schema().name(),
                                   " reads parameter ", part.name, ", of which this rank has a ",
                                   is_split ? "part" : "shard", ", ", shard->sizes(),
                                   ": call its module through modules::forward(), and keep ",
                                   is_split ? "what parallelize returned" : "its unit"));
    }
  }
  const c10::impl::ExcludeDispatchKeyGuard without_key(kKey);
  op.callBoxed(stack);
  if (!converts(op.schema().name()) || !is_guarded(tensors.front())) return;
  const at::Tensor converted = torch::jit::pop(*stack).toTensor();
  const Names::Part part = names().find(tensors.front());
  torch::jit::push(*stack,
                   is_guarded(converted) ? converted : guarded(converted, part.kind, part.name));
}

// False if another library in this process has taken the key: shards are then not guarded.
bool has_key() {
  static const bool registered = [] {
    try {
      // Never destroyed: after that every operator on a shard would fail.
      auto* library = new torch::Library(torch::Library::IMPL, "_", kKey, __FILE__, __LINE__);
      library->fallback(torch::CppFunction::makeFromBoxedFunction<&run_with_parts>());
      return true;
    } catch (const c10::Error&) {
      return false;
    }
  }();
  return registered;
}

}  // namespace

at::Tensor guarded(const at::Tensor& part, PartKind kind, const std::string& name) {
  if (!has_key()) return part;
  name_part(part, kind, name);
  at::Tensor tensor = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(part.storage()), part.key_set().add(kKey), part.dtype());
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(part.sizes(), part.strides(),
                                                      part.storage_offset());
  if (part.requires_grad())
    torch::autograd::impl::set_gradient_edge(tensor, torch::autograd::impl::gradient_edge(part));
  return tensor;
}

void name_part(const at::Tensor& part, PartKind kind, const std::string& name) {
  names().set(part, kind, name);
}

bool is_guarded(const at::Tensor& tensor) { return tensor.key_set().has(kKey); }

bool is_part(const at::Tensor& tensor, PartKind kind) {
  return is_guarded(tensor) && names().find(tensor).kind == kind;
}

MayReadParts::MayReadParts() : without_key_(c10::DispatchKeySet(kKey)) {}

}  // namespace pipewright::modules
