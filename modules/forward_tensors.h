#ifndef PIPEWRIGHT_MODULES_FORWARD_TENSORS_H_
#define PIPEWRIGHT_MODULES_FORWARD_TENSORS_H_

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "pipewright/modules/forward.h"
#include "pipewright/modules/tensors.h"

// Calls the forward of a module with a list of tensors, whose length is known only at run time:
//
//   torch::nn::LSTM lstm(8, 8);
//   Tensors outputs = modules::forward_tensors(lstm, {x});        // {output, hidden, cell}
//   outputs = modules::forward_tensors(lstm, {x, hidden, cell});  // lstm(x, tuple(hidden, cell))
//
// The tensors become the arguments in order. A parameter is a tensor, a type that consists of
// tensors (tensors.h), or one that a tensor converts to; a vector or an at::TensorList takes all
// tensors that are left. Parameters with a default may be left out, from the last one on. If
// forward is overloaded or a template, it is called as forward(tensors[0], tensors[1], ...) with up
// to 8 tensors, or else as forward(tensors) if there is an overload for a vector.

namespace pipewright::modules {
namespace forward_tensors_internal {

// A way to call the forward of a Module.
template <typename Module>
struct Call {
  NumTensors num_tensors = {};
  Tensors (*run)(Module& module, Tensors tensors) = nullptr;  // null: the call does not compile
};

// What is passed for a parameter P.
template <typename P, typename Value = std::remove_cvref_t<P>>
using Argument = std::conditional_t<
    ConsistsOfTensors<Value>, Value,
    std::conditional_t<std::is_same_v<Value, at::TensorList>, Tensors, at::Tensor>>;

template <typename P>
decltype(auto) pass(Argument<P>& argument) {
  if constexpr (std::is_same_v<std::remove_cvref_t<P>, Argument<P>>)
    return static_cast<P&&>(argument);
  else
    return (argument);  // converts to P
}

template <typename Module, typename... Arguments>
auto invoke(Module& module, Arguments&&... arguments)
    -> decltype(module.forward(std::forward<Arguments>(arguments)...)) {
  if constexpr (std::is_same_v<Module, torch::nn::SequentialImpl>)
    return forward_children(module, arguments...);
  else
    return module.forward(std::forward<Arguments>(arguments)...);
}

// The call whose arguments are for the parameters P.
template <typename Module, typename... P>
constexpr Call<Module> call_for() {
  using Arguments = std::tuple<Argument<P>...>;
  constexpr bool kReturnsTensors = requires(Module & module, Argument<P> & ... arguments) {
    requires ConsistsOfTensors<
        std::remove_cvref_t<decltype(invoke(module, pass<P>(arguments)...))>>;
  };
  if constexpr (!ConsistsOfTensors<Arguments> || !kReturnsTensors) {
    return {};
  } else {
    return {
        kNumTensors<Arguments>, [](Module& module, Tensors tensors) {
          auto arguments = from_tensors<Arguments>(std::move(tensors));
          return std::apply(
              [&](Argument<P>&... each) { return to_tensors(invoke(module, pass<P>(each)...)); },
              arguments);
        }};
  }
}

template <typename Module, typename Parameters, size_t... I>
constexpr Call<Module> call_for_first(std::index_sequence<I...> /*parameters*/) {
  return call_for<Module, std::tuple_element_t<I, Parameters>...>();
}

// The calls for the first parameters, as many as each of `Numbers`.
template <typename Module, typename Parameters, size_t... Numbers>
constexpr auto calls_for_first(std::index_sequence<Numbers...> /*numbers*/) {
  return std::array{call_for_first<Module, Parameters>(std::make_index_sequence<Numbers>())...};
}

// The parameters of a forward that is neither overloaded nor a template.
template <typename Result, typename Module, typename... P>
std::type_identity<std::tuple<P...>> parameters_of(Result (Module::*)(P...));
template <typename Result, typename Module, typename... P>
std::type_identity<std::tuple<P...>> parameters_of(Result (Module::*)(P...) const);
template <typename Result, typename... P>
std::type_identity<std::tuple<P...>> parameters_of(Result (*)(P...));

// The calls of a module's forward; the first one that takes a number of tensors is used for it.
template <typename Module>
constexpr auto calls_of() {
  using Plain = std::remove_const_t<Module>;
  if constexpr (requires { parameters_of(&Plain::forward); }) {
    using Parameters = typename decltype(parameters_of(&Plain::forward))::type;
    return calls_for_first<Module, Parameters>(
        std::make_index_sequence<std::tuple_size_v<Parameters> + 1>());
  } else {
    using T = const at::Tensor&;
    constexpr auto kCalls = calls_for_first<Module, std::tuple<T, T, T, T, T, T, T, T>>(
        std::index_sequence<1, 2, 3, 4, 5, 6, 7, 8>());
    std::array<Call<Module>, kCalls.size() + 1> calls;
    std::ranges::copy(kCalls, calls.begin());
    // A template may accept a vector as well, but its body was written for tensors.
    if constexpr (!requires { &Plain::template forward<at::Tensor>; })
      calls.back() = call_for<Module, const Tensors&>();
    return calls;
  }
}

template <typename Module>
constexpr bool is_callable() {
  return std::ranges::any_of(calls_of<Module>(), [](const auto& call) { return call.run; });
}

// Throws std::invalid_argument.
[[noreturn]] void refuse(const torch::nn::Module& module, std::vector<NumTensors> expected,
                         size_t got);

template <typename Module>
Tensors run(Module& module, Tensors tensors) {
  static constexpr auto kCalls = calls_of<Module>();
  std::vector<NumTensors> expected;
  for (const Call<Module>& call : kCalls) {
    if (!call.run) continue;
    const auto [least, or_more] = call.num_tensors;
    if (or_more ? tensors.size() >= least : tensors.size() == least)
      return call.run(module, std::move(tensors));
    expected.push_back(call.num_tensors);
  }
  refuse(module, expected, tensors.size());
}

}  // namespace forward_tensors_internal

// A shared_ptr or a ModuleHolder whose module can be called with some number of tensors, and then
// returns what consists of tensors.
template <typename Module>
concept TakesTensors = requires(Module& module) {
  requires forward_tensors_internal::is_callable<std::remove_reference_t<decltype(*module)>>();
};

// Calls the module through its hooks (forward.h). Throws std::invalid_argument if its forward takes
// another number of tensors.
template <TakesTensors Module>
Tensors forward_tensors(const Module& module, const Tensors& tensors) {
  auto callee = module;  // a ModuleHolder's operator* is const, the module it returns is not
  const auto function = [&](const Tensors& moved) {
    return forward_tensors_internal::run(*callee, moved);
  };
  return call(*callee, function, tensors);
}

}  // namespace pipewright::modules

#endif  // PIPEWRIGHT_MODULES_FORWARD_TENSORS_H_
