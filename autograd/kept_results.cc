// The second forward must build the graph of a kept operator without its work: so the result is
// put in place of the work below autograd. Autograd's kernels call the next kernel of the operator,
// which is that of ADInplaceOrView: of an operator that neither writes nor returns a view, there is
// none, and a policy registers one.
#include "pipewright/autograd/kept_results.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/enum_tag.h>
#include <c10/core/DispatchKeySet.h>
#include <torch/library.h>

#include <algorithm>
#include <mutex>
#include <stdexcept>
#include <tuple>
#include <utility>

#include "pipewright/ir/errors.h"

namespace pipewright::autograd {
namespace {

constexpr auto kBelowAutograd = c10::DispatchKey::ADInplaceOrView;

std::vector<c10::OperatorHandle> overloads_of(const std::string& name) {
  std::vector<c10::OperatorHandle> found;
  for (const c10::OperatorName& each : c10::Dispatcher::singleton().getAllOpNames()) {
    if (each.name != name) continue;
    if (const auto operation = c10::Dispatcher::singleton().findSchema(each))
      found.push_back(*operation);
  }
  return found;
}

bool is_aliased(const c10::Argument& argument) { return argument.alias_info() != nullptr; }

// Of an overload with an `out` argument, LibTorch records no graph.
bool writes_or_views(const c10::OperatorHandle& operation) {
  return std::ranges::any_of(operation.schema().arguments(), is_aliased) ||
         std::ranges::any_of(operation.schema().returns(), is_aliased);
}

bool calls_others(const c10::OperatorHandle& operation) {
  return operation.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd);
}

// Why a policy cannot name these overloads of an operator; empty if it can.
std::string fault_of(const std::vector<c10::OperatorHandle>& overloads) {
  if (overloads.empty()) return "no such operator";
  if (std::ranges::all_of(overloads, writes_or_views))
    return "one that writes to an argument or returns a view of one";
  if (std::ranges::any_of(overloads, calls_others)) return "one that calls others: name those";
  return "";
}

// Never destroyed: threads may still run operators when static objects are destroyed.
void register_kernels(const std::vector<c10::OperatorHandle>& overloads) {
  static std::mutex mutex;
  static std::set<c10::OperatorName, bool (*)(const c10::OperatorName&, const c10::OperatorName&)>
      registered([](const c10::OperatorName& a, const c10::OperatorName& b) {
        return std::tie(a.name, a.overload_name) < std::tie(b.name, b.overload_name);
      });
  static auto* library =
      new torch::Library(torch::Library::IMPL, "aten", kBelowAutograd, __FILE__, __LINE__);
  const std::lock_guard lock(mutex);
  for (const c10::OperatorHandle& operation : overloads) {
    const c10::OperatorName& name = operation.operator_name();
    if (writes_or_views(operation) || !registered.insert(name).second) continue;
    library->impl(c10::toString(name).c_str(),
                  torch::CppFunction::makeFromBoxedFunction<&KeptResults::call>());
  }
}

// Whether a call draws random numbers, which a second forward would not draw again.
bool draws_numbers(const c10::OperatorHandle& operation, const torch::jit::Stack& stack) {
  const auto& arguments = operation.schema().arguments();
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i].name() == "dropout_p")
      return stack[stack.size() - arguments.size() + i].toDouble() > 0;
  }
  return operation.hasTag(at::Tag::nondeterministic_seeded);
}

// The same memory, without what autograd attaches to a tensor.
c10::IValue without_graph(const c10::IValue& value) {
  if (!value.isTensor() || !value.toTensor().defined()) return value;
  const c10::TensorImpl& tensor = *value.toTensor().unsafeGetTensorImpl();
  return at::Tensor(tensor.shallow_copy_and_detach(tensor.version_counter(),
                                                   /*allow_tensor_metadata_change=*/true));
}

ContractError other_operators(const std::string& what) {
  return ContractError(
      "checkpoint: expected a part to call the same operators in both forwards, but the second "
      "one " +
      what);
}

bool share_memory(const c10::IValue& value, const at::Tensor& other) {
  if (!value.isTensor() || !other.defined() || !other.has_storage()) return false;
  const at::Tensor& tensor = value.toTensor();
  return tensor.defined() && tensor.has_storage() && tensor.is_alias_of(other);
}

}  // namespace

void KeptResults::Result::watch_values() {
  watched.clear();
  for (const c10::IValue& value : values) {
    if (value.isTensor() && value.toTensor().defined()) watch(value.toTensor());
  }
}

// Whose results this thread keeps or reuses. They nest.
class KeptResults::Scope {
 public:
  Scope(KeptResults* of, bool again)
      : results(of), reuses(again), outer(std::exchange(current, this)) {}
  ~Scope() { current = outer; }
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;

  KeptResults* const results;
  const bool reuses;
  Scope* const outer;
  static thread_local Scope* current;
};

thread_local KeptResults::Scope* KeptResults::Scope::current = nullptr;

KeepPolicy::KeepPolicy(const std::vector<std::string>& operators) {
  for (const std::string& name : operators) {
    const auto overloads = overloads_of(name);
    const std::string fault =
        name.starts_with("aten::") ? fault_of(overloads) : "another library's";
    if (!fault.empty()) {
      throw std::invalid_argument("KeepPolicy: `" + name +
                                  "`: expected an operator of LibTorch that computes new tensors, "
                                  "such as `aten::mm`, got " +
                                  fault);
    }
    register_kernels(overloads);
    operators_.insert(name);
  }
}

// Made once: it looks through the names of all operators.
KeepPolicy KeepPolicy::matrix_products() {
  static const KeepPolicy policy = make_matrix_products();
  return policy;
}

KeepPolicy KeepPolicy::make_matrix_products() {
  std::vector<std::string> operators = {"aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm",
                                        "aten::convolution"};
  // Not every version of LibTorch has each of these.
  for (const char* name : {"aten::_grouped_mm", "aten::_scaled_mm", "aten::_scaled_grouped_mm",
                           "aten::_scaled_dot_product_flash_attention_for_cpu",
                           "aten::_scaled_dot_product_flash_attention",
                           "aten::_scaled_dot_product_efficient_attention",
                           "aten::_scaled_dot_product_cudnn_attention",
                           "aten::_scaled_dot_product_fused_attention_overrideable"}) {
    if (fault_of(overloads_of(name)).empty()) operators.emplace_back(name);
  }
  return KeepPolicy(operators);
}

std::vector<at::Tensor> KeptResults::keep(const Function& forward) {
  const Scope scope(this, /*reuses=*/false);
  std::vector<at::Tensor> outputs = forward();
  for (const at::Tensor& output : outputs) {
    for (Result& result : results_) {
      if (std::ranges::any_of(
              result.values, [&](const c10::IValue& value) { return share_memory(value, output); }))
        result.watch(without_graph(output).toTensor());
    }
  }
  return outputs;
}

void KeptResults::before_write(const at::Tensor& tensor) {
  const Scope* const scope = Scope::current;
  if (scope == nullptr || scope->results == nullptr || scope->reuses) return;
  for (Result& result : scope->results->results_) {
    for (c10::IValue& value : result.values) {
      if (!share_memory(value, tensor)) continue;
      const at::AutoDispatchBelowADInplaceOrView guard;
      value = value.toTensor().clone();
      result.watch_values();
    }
  }
}

std::vector<at::Tensor> KeptResults::reuse(const Function& forward) {
  const Scope scope(std::exchange(are_spent_, true) ? nullptr : this, /*reuses=*/true);
  std::vector<at::Tensor> outputs = forward();
  if (next_ < results_.size())
    throw other_operators("did not call `" + results_[next_].name + "` once more");
  clear();
  return outputs;
}

void KeptResults::clear() {
  results_.clear();
  next_ = 0;
}

void KeptResults::call(const c10::OperatorHandle& operation, c10::DispatchKeySet keys,
                       torch::jit::Stack* stack) {
  const Scope* const scope = Scope::current;
  KeptResults* const results = scope ? scope->results : nullptr;
  const std::string& name = operation.operator_name().name;
  const bool is_kept = results && results->policy_.keeps(operation.operator_name()) &&
                       !draws_numbers(operation, *stack);
  if (is_kept && scope->reuses) {
    torch::jit::drop(*stack, operation.schema().arguments().size());
    for (c10::IValue& value : results->take(name)) stack->push_back(std::move(value));
    return;
  }
  operation.redispatchBoxed(
      keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kBelowAutograd), stack);
  if (!is_kept) return;
  Result& result = results->results_.emplace_back(Result{.name = name, .values = {}});
  for (size_t i = stack->size() - operation.schema().returns().size(); i < stack->size(); ++i)
    result.values.push_back(without_graph((*stack)[i]));
  result.watch_values();
}

std::vector<c10::IValue> KeptResults::take(const std::string& name) {
  if (next_ == results_.size()) throw other_operators("called `" + name + "` once more");
  if (results_[next_].name != name)
    throw other_operators("called `" + name + "` in place of `" + results_[next_].name + "`");
  const Result result = std::move(results_[next_++]);
  const bool was_written = std::ranges::any_of(
      result.watched, [](const auto& one) { return one.first._version() != one.second; });
  if (was_written) {
    throw ContractError("checkpoint: a result of `" + name +
                        "`, which a part keeps for its second forward, was written in place: "
                        "expected no such write, or a policy that does not keep it");
  }
  return result.values;
}

}  // namespace pipewright::autograd
