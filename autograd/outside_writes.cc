// Each operator that writes to an argument has one more kernel, under a dispatch key that a
// recording includes on its thread: it notes these arguments and calls the next kernel. Other
// operators are not slowed down. The memory of a temporary tensor is gone when the function has
// returned; what is left is outside of it. References are weak, so that temporaries are freed as
// early as without a recording; they also keep an address from being used again.
#include "pipewright/autograd/outside_writes.h"

#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/library.h>

#include <algorithm>
#include <utility>

#include "pipewright/autograd/kept_results.h"

namespace pipewright::autograd {

class WriteRecording;

namespace {

constexpr auto kWriteKey = c10::DispatchKey::TESTING_ONLY_GenericWrapper;

thread_local WriteRecording* current_recording = nullptr;
thread_local bool records = true;

}  // namespace

// One call of record(); they nest.
class WriteRecording {
 public:
  explicit WriteRecording(OutsideWrites& writes)
      : writes_(writes), outer_(std::exchange(current_recording, this)) {
    c10::impl::tls_set_dispatch_key_included(kWriteKey, true);
  }
  ~WriteRecording() {
    current_recording = outer_;
    c10::impl::tls_set_dispatch_key_included(kWriteKey, current_recording != nullptr);
  }
  WriteRecording(const WriteRecording&) = delete;
  WriteRecording& operator=(const WriteRecording&) = delete;

  static void note(const at::Tensor& tensor) {
    KeptResults::before_write(tensor);
    for (WriteRecording* each = current_recording; each; each = each->outer_)
      each->writes_.note(tensor);
  }

 private:
  OutsideWrites& writes_;
  WriteRecording* const outer_;
};

namespace {

// The running statistics of native_batch_norm and its kin are updated, although most of their
// schemas do not say so.
bool is_written(const c10::Argument& argument) {
  const c10::AliasInfo* alias = argument.alias_info();
  return (alias && alias->isWrite()) || argument.name() == "running_mean" ||
         argument.name() == "running_var";
}

void note_writes(const c10::OperatorHandle& operation, c10::DispatchKeySet keys,
                 torch::jit::Stack* stack) {
  if (records) {
    const auto& arguments = operation.schema().arguments();
    const auto first = stack->end() - static_cast<std::ptrdiff_t>(arguments.size());
    for (size_t i = 0; i < arguments.size(); ++i) {
      if (!is_written(arguments[i])) continue;
      const c10::IValue& value = first[static_cast<std::ptrdiff_t>(i)];
      if (value.isTensor()) WriteRecording::note(value.toTensor());
      if (!value.isList()) continue;
      for (const c10::IValue& each : value.toListRef()) {
        if (each.isTensor()) WriteRecording::note(each.toTensor());
      }
    }
  }
  operation.redispatchBoxed(keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kWriteKey),
                            stack);
}

// Never destroyed: threads may still run operators when static objects are destroyed.
void register_kernels() {
  static const bool once = [] {
    auto* any = new torch::Library(torch::Library::IMPL, "_", kWriteKey, __FILE__, __LINE__);
    any->fallback(torch::CppFunction::makeFallthrough());
    std::map<std::string, torch::Library*> libraries;
    for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
      const auto operation = c10::Dispatcher::singleton().findSchema(name);
      if (!operation || !std::ranges::any_of(operation->schema().arguments(), is_written)) continue;
      // It calls others, which are noted.
      if (operation->hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd)) continue;
      const std::string space(name.getNamespace().value_or("aten"));
      torch::Library*& library = libraries[space];
      if (!library)
        library = new torch::Library(torch::Library::IMPL, space, kWriteKey, __FILE__, __LINE__);
      const std::string full =
          name.name + (name.overload_name.empty() ? "" : ".") + name.overload_name;
      library->impl(full.c_str(), torch::CppFunction::makeFromBoxedFunction<&note_writes>());
    }
    return true;
  }();
  static_cast<void>(once);
}

}  // namespace

std::vector<at::Tensor> OutsideWrites::record(const Function& function) {
  register_kernels();
  written_.clear();
  std::vector<at::Tensor> outputs;
  {
    WriteRecording recording(*this);
    outputs = function();
  }
  std::erase_if(written_, [](const auto& entry) { return entry.second.storage.expired(); });
  for (const at::Tensor& output : outputs) {
    if (output.defined() && output.has_storage())
      written_.erase(output.storage().unsafeGetStorageImpl());
  }
  return outputs;
}

void OutsideWrites::note(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.has_storage() || tensor.is_meta()) return;
  c10::StorageImpl* const storage = tensor.storage().unsafeGetStorageImpl();
  if (written_.contains(storage)) return;
  written_.emplace(storage,
                   Written{WeakStorage(c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(storage)),
                           WeakTensor(tensor.getIntrusivePtr())});
}

OutsideWrites::Values OutsideWrites::values() const {
  const c10::NoGradGuard no_grad;
  Values result;
  for (const auto& [address, written] : written_) {
    const auto storage = written.storage.lock();
    if (!storage || storage->nbytes() == 0) continue;
    Values::Value value;
    value.bytes =
        at::empty({0}, at::TensorOptions(at::kByte).device(storage->device()))
            .set_(c10::Storage(storage), 0, {static_cast<int64_t>(storage->nbytes())}, {1});
    value.copy = value.bytes.clone();
    if (auto tensor = written.tensor.lock(); tensor && !tensor->is_inference()) {
      value.tensor = at::Tensor(std::move(tensor));
      value.version = value.tensor._version();
    }
    result.values_.push_back(std::move(value));
  }
  return result;
}

void OutsideWrites::Values::restore() const {
  const c10::NoGradGuard no_grad;
  for (const Value& value : values_) {
    if (value.bytes.storage().nbytes() != static_cast<size_t>(value.bytes.numel())) continue;
    value.bytes.copy_(value.copy);
    if (value.tensor.defined() && value.tensor._version() != value.version)
      torch::autograd::impl::bump_version(value.tensor);
  }
}

RecordsWrites::RecordsWrites(bool on) : outer_(std::exchange(records, on)) {}

RecordsWrites::~RecordsWrites() { records = outer_; }

}  // namespace pipewright::autograd
