// One call of run_on_device() goes through these steps: classify the arguments (Call), take
// snapshots of what may change before the kernel runs (host numbers, the generator's state), run
// the host's operator on dummies if the results' shapes are unknown, allocate the results, queue
// the kernel.
#include "tests/device/fallback.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <c10/core/Allocator.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <limits>
#include <mutex>
#include <set>
#include <string>

#include "tests/device/current.h"
#include "tests/device/device.h"
#include "tests/device/host_alias.h"
#include "tests/device/memory.h"
#include "tests/device/scheduler.h"

namespace pipewright::testdevice {
namespace {

using c10::IValue;
using torch::jit::Stack;
using Tensors = std::vector<at::Tensor>;

constexpr size_t kNone = static_cast<size_t>(-1);

bool is_write(const c10::Argument& argument) {
  return argument.alias_info() && argument.alias_info()->isWrite();
}

// What the schema and the arguments of one call say.
struct Call {
  std::string name;
  const c10::FunctionSchema& schema;
  Stack arguments;
  std::optional<c10::Device> device;
  Tensors reads, writes;
  bool has_empty_output = false;  // an `out` that the operator resizes
  bool has_new_outputs = false;
  bool runs_at_once = false;  // its result is a number, or has a size that depends on values
  bool is_random = false;
  size_t generator = kNone;  // index of the argument
};

void add_argument(Call& call, size_t index) {
  const c10::Argument& argument = call.schema.arguments()[index];
  const IValue& value = call.arguments[index];
  for_each_tensor(value, [&](const at::Tensor& tensor) {
    if (!tensor.defined()) return;
    if (!is_on_device(tensor)) {
      TORCH_CHECK(tensor.dim() == 0 || call.name.starts_with("aten::index"),
                  "expected all tensors to be on the same device, got one of ", call.name, " on ",
                  tensor.device());
      return;
    }
    TORCH_CHECK(!call.device || *call.device == tensor.device(),
                "expected all tensors to be on the same device, got ", *call.device, " and ",
                tensor.device(), " in ", call.name);
    call.device = tensor.device();
    (is_write(argument) ? call.writes : call.reads).push_back(tensor);
    if (is_write(argument) && tensor.numel() == 0) call.has_empty_output = true;
  });
  if (value.isGenerator() || argument.name() == "generator") call.generator = index;
  if (!call.device && value.isDevice() && value.toDevice().type() == kDeviceType)
    call.device = value.toDevice();
}

Call classify(const c10::OperatorHandle& op, Stack* stack) {
  Call call{c10::toString(op.operator_name()), op.schema(), {}, {}, {}, {}};
  call.arguments = torch::jit::pop(*stack, op.schema().arguments().size());
  for (size_t i = 0; i < call.arguments.size(); ++i) add_argument(call, i);
  call.runs_at_once =
      op.hasTag(at::Tag::dynamic_output_shape) || op.hasTag(at::Tag::data_dependent_output);
  call.is_random = op.hasTag(at::Tag::nondeterministic_seeded);
  for (const c10::Argument& result : call.schema.returns()) {
    const bool is_tensor = result.type()->isSubtypeOf(*c10::TensorType::get()) ||
                           result.type()->isSubtypeOf(*c10::ListType::ofTensors());
    TORCH_CHECK_NOT_IMPLEMENTED(!is_tensor || !result.alias_info() || is_write(result), call.name,
                                " returns a view and needs a kernel of its own");
    if (!is_tensor) call.runs_at_once = true;
    if (is_tensor && !result.alias_info()) call.has_new_outputs = true;
  }
  return call;
}

// A kernel reads host numbers when it is issued.
void copy_host_numbers(Stack& arguments) {
  for (IValue& value : arguments) {
    if (!value.isTensor() || !value.toTensor().defined() || !value.toTensor().is_cpu()) continue;
    const bool wrapped = value.toTensor().unsafeGetTensorImpl()->is_wrapped_number();
    const at::Tensor copy = value.toTensor().detach().clone();
    copy.unsafeGetTensorImpl()->set_wrapped_number(wrapped && copy.dim() == 0);
    value = copy;
  }
}

// The host's counterpart of an operator.
Stack call_host(const c10::OperatorHandle& op, Stack arguments) {
  op.callBoxed(&arguments);
  return arguments;
}

// Convolutions of unknown devices are operators of their own.
Stack call_host_convolution(const c10::OperatorHandle& op, Stack arguments) {
  const bool backward = op.operator_name().name == "aten::convolution_backward_overrideable";
  const char* name = backward ? "aten::convolution_backward" : "aten::convolution";
  if (backward) {  // has the sizes of the bias as argument 3
    const at::Tensor grad = arguments[0].toTensor();
    arguments.insert(arguments.begin() + 3, IValue(std::vector<int64_t>{grad.size(1)}));
  }
  c10::Dispatcher::singleton().findSchemaOrThrow(name, "").callBoxed(&arguments);
  return arguments;
}

// Keeps what a kernel allocates on the host out of the meter of the thread that runs it.
class NotMetered final : public c10::MemoryReportingInfoBase {
 public:
  void reportMemoryUsage(void*, int64_t, size_t, size_t, c10::Device) override {}
  bool memoryProfilingEnabled() const override { return false; }
};

Stack run_on_host(const c10::OperatorHandle& op, Stack arguments) {
  const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE,
                                  std::make_shared<NotMetered>());
  // A device's kernel does not draw from the caller's generator of the CPU (autograd/checkpoint.h).
  const c10::impl::ExcludeDispatchKeyGuard no_scope(c10::DispatchKey::TESTING_ONLY_GenericMode);
  if (op.operator_name().name.ends_with("_overrideable"))
    return call_host_convolution(op, std::move(arguments));
  return call_host(op, std::move(arguments));
}

// What another order of the same sums changes.
void perturb(const c10::OperatorHandle& op, const Stack& results) {
  static const std::set<std::string> kInexact = {"aten::mm",   "aten::addmm",   "aten::bmm",
                                                 "aten::tanh", "aten::baddbmm", "aten::_softmax"};
  if (!machine().rounds_otherwise || !kInexact.contains(op.operator_name().name)) return;
  for (const IValue& value : results) {
    for_each_tensor(value, [](const at::Tensor& tensor) {
      const bool is_double = tensor.defined() && tensor.scalar_type() == at::kDouble;
      if (is_double || (tensor.defined() && tensor.scalar_type() == at::kFloat))
        tensor.mul_(1 + 2 * (is_double ? std::numeric_limits<double>::epsilon()
                                       : std::numeric_limits<float>::epsilon()));
    });
  }
}

// Runs `function` while the host's default generator has the state of `generator`, and leaves the
// state that follows in `generator`. For random operators without a generator argument. Ranks share
// the host's generator.
void with_default_generator(at::Generator generator, const std::function<void()>& function) {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  at::Generator host = at::detail::getDefaultCPUGenerator();
  const at::Tensor before = host.get_state();
  host.set_state(generator.get_state());
  function();
  generator.set_state(host.get_state());
  host.set_state(before);
}

at::Tensor empty_like_on(const at::Tensor& host, c10::Device device) {
  if (!host.defined()) return host;
  const c10::DeviceGuard guard(device);
  return at::detail::empty_strided_generic(host.sizes(), host.strides(), &device_allocator(),
                                           c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                           host.scalar_type());
}

// The results that are not written arguments.
Stack new_results(const c10::FunctionSchema& schema, const Stack& results) {
  Stack some;
  for (size_t i = 0; i < results.size(); ++i)
    if (!schema.returns()[i].alias_info()) some.push_back(results[i]);
  return some;
}

// Returns the call's results: written arguments, and new tensors like those of `example`, which are
// also appended to `made`.
Stack allocate_results(const Call& call, const Stack& example, c10::Device device, Tensors& made) {
  Stack results;
  for (size_t i = 0; i < call.schema.returns().size(); ++i) {
    if (const auto* alias = call.schema.returns()[i].alias_info()) {
      for (size_t arg = 0; arg < call.arguments.size(); ++arg) {
        const c10::Argument& argument = call.schema.arguments()[arg];
        if (!is_write(argument) || argument.alias_info()->beforeSets() != alias->beforeSets())
          continue;
        results.push_back(call.arguments[arg]);
        break;
      }
    } else if (example[i].isTensor()) {
      made.push_back(empty_like_on(example[i].toTensor(), device));
      results.emplace_back(made.back());
    } else if (example[i].isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& tensor : example[i].toTensorVector()) {
        made.push_back(empty_like_on(tensor, device));
        list.push_back(made.back());
      }
      results.emplace_back(list);
    } else {
      results.push_back(example[i]);
    }
  }
  return results;
}

void copy_results(const Stack& from, const Tensors& to) {
  size_t next = 0;
  for (const IValue& value : from) {
    for_each_tensor(value, [&](const at::Tensor& tensor) {
      const at::Tensor& target = to.at(next++);
      if (tensor.defined() && target.defined()) target.copy_(tensor);
    });
  }
}

// Makes an empty `out` as large as the operator makes it.
void resize_outputs(const Call& call, HostDummies& dummies) {
  for (const at::Tensor& tensor : call.writes) {
    const at::Tensor dummy = dummies(tensor);
    if (dummy.sizes() == tensor.sizes()) continue;
    const size_t bytes = at::detail::computeStorageNbytesContiguous(
        dummy.sizes(), tensor.element_size(), static_cast<size_t>(tensor.storage_offset()));
    if (bytes > tensor.storage().nbytes()) resize_storage(tensor.storage(), bytes);
    tensor.unsafeGetTensorImpl()->set_sizes_and_strides(dummy.sizes(), dummy.strides());
  }
}

Stack map_arguments(HostAliases& aliases, const Call& call, const at::Generator& generator) {
  Stack mapped;
  for (const IValue& value : call.arguments) mapped.push_back(aliases(value));
  if (call.is_random && call.generator != kNone) mapped[call.generator] = generator;
  return mapped;
}

}  // namespace

void run_on_device(const c10::OperatorHandle& op, Stack* stack) {
  Call call = classify(op, stack);
  c10::Device on = call.device.value_or(device(current_device()));
  if (!on.has_index()) on = device(current_device());
  const c10::DeviceGuard guard(on);
  copy_host_numbers(call.arguments);

  at::Generator generator, before;
  if (call.is_random) {
    const bool given = call.generator != kNone && call.arguments[call.generator].isGenerator();
    generator = given ? call.arguments[call.generator].toGenerator()
                      : at::globalContext().defaultGenerator(on);
    before = generator.clone();
  }
  const bool swaps = call.is_random && call.generator == kNone;
  const auto run = [op, swaps](Stack arguments, const at::Generator& state) {
    Stack results;
    if (swaps)
      with_default_generator(state, [&] { results = run_on_host(op, std::move(arguments)); });
    else
      results = run_on_host(op, std::move(arguments));
    perturb(op, results);
    return results;
  };

  Stack example;  // of the results
  if (call.runs_at_once) {
    Lock lock(machine().mutex);
    Stream& stream = stream_of(current_stream(on.index()));
    issue(stream, {.name = call.name, .uses = uses_of(call.reads, call.writes)});
    synchronize_host(lock, call.name, record_event(stream));
    HostAliases aliases;
    example = run(map_arguments(aliases, call, before), before);
  } else if (call.has_new_outputs || call.is_random || call.has_empty_output) {
    HostDummies dummies;
    example = run(map_arguments(dummies, call, generator), generator);
    resize_outputs(call, dummies);
  }
  Tensors made;
  const Stack results = allocate_results(call, example, on, made);

  const Lock lock(machine().mutex);
  Stream& stream = stream_of(current_stream(on.index()));
  HostAliases aliases;
  Tensors targets;
  for (const at::Tensor& tensor : made) targets.push_back(aliases(tensor));
  std::function<void()> kernel;
  if (call.runs_at_once) {
    kernel = [values = new_results(call.schema, example), targets] {
      copy_results(values, targets);
    };
  } else {
    kernel = [run, op, targets, before, arguments = map_arguments(aliases, call, before)] {
      copy_results(new_results(op.schema(), run(arguments, before)), targets);
    };
  }
  std::vector<Use> uses = uses_of(call.reads, call.writes);
  add_uses(uses, made, true);
  ++machine().kernels[call.name];
  issue(stream, {.name = call.name, .kernel = std::move(kernel), .uses = std::move(uses)});
  drift(on.index());
  for (const IValue& result : results) stack->push_back(result);
}

}  // namespace pipewright::testdevice
