// LibTorch looks up the default generator of the CPU inside of its kernels, in a static variable.
// But a kernel that gets a generator as an argument uses that. So each operator with such an
// argument has one more kernel, under a dispatch key that comes before all others and that a scope
// includes on its thread: it fills in the missing argument and calls the next kernel.
#include "pipewright/autograd/generator_scope.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include <algorithm>
#include <utility>

namespace pipewright::autograd {
namespace {

constexpr auto kDrawKey = c10::DispatchKey::TESTING_ONLY_GenericMode;

thread_local at::Generator current;  // undefined outside of scopes
thread_local int64_t draws = 0;

bool takes_generator(const c10::FunctionSchema& schema) {
  return std::ranges::any_of(schema.arguments(), [](const c10::Argument& argument) {
    return *argument.type() == *c10::OptionalType::create(c10::GeneratorType::get());
  });
}

bool is_elsewhere(const c10::IValue& value) {
  return (value.isTensor() && value.toTensor().defined() && !value.toTensor().is_cpu()) ||
         (value.isDevice() && !value.toDevice().is_cpu());
}

void fill_in_generator(const c10::OperatorHandle& operation, c10::DispatchKeySet keys,
                       torch::jit::Stack* stack) {
  const auto& arguments = operation.schema().arguments();
  const auto first = stack->end() - static_cast<std::ptrdiff_t>(arguments.size());
  if (current.defined() && std::none_of(first, stack->end(), is_elsewhere)) {
    for (size_t i = 0; i < arguments.size(); ++i) {
      c10::IValue& value = first[static_cast<std::ptrdiff_t>(i)];
      if (value.isNone() &&
          *arguments[i].type() == *c10::OptionalType::create(c10::GeneratorType::get())) {
        value = current;
        ++draws;
      }
    }
  }
  operation.redispatchBoxed(keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kDrawKey),
                            stack);
}

TORCH_LIBRARY_IMPL(_, TESTING_ONLY_GenericMode, library) {
  library.fallback(torch::CppFunction::makeFallthrough());
}

TORCH_LIBRARY_IMPL(aten, TESTING_ONLY_GenericMode, library) {
  for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
    const auto operation = c10::Dispatcher::singleton().findSchema(name);
    if (name.name.starts_with("aten::") && operation && takes_generator(operation->schema())) {
      const std::string full =
          name.name + (name.overload_name.empty() ? "" : ".") + name.overload_name;
      library.impl(full.c_str(), torch::CppFunction::makeFromBoxedFunction<&fill_in_generator>());
    }
  }
}

}  // namespace

GeneratorScope::GeneratorScope(uint64_t seed)
    : GeneratorScope(at::detail::createCPUGenerator(seed)) {}

GeneratorScope::GeneratorScope(at::Generator generator)
    : outer_(std::exchange(current, std::move(generator))) {
  c10::impl::tls_set_dispatch_key_included(kDrawKey, true);
}

GeneratorScope::~GeneratorScope() {
  current = std::move(outer_);
  c10::impl::tls_set_dispatch_key_included(kDrawKey, current.defined());
}

at::Generator cpu_generator() {
  return current.defined() ? current : at::detail::getDefaultCPUGenerator();
}

int64_t draw_count() { return draws; }

}  // namespace pipewright::autograd
