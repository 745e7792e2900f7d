#ifndef PIPEWRIGHT_MODULES_TENSORS_H_
#define PIPEWRIGHT_MODULES_TENSORS_H_

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

// A forward returns a tensor, a tuple of tensors or a vector of them; wrappers and stages pass all
// of these on as a vector.

namespace pipewright::modules {

using Tensors = std::vector<at::Tensor>;

inline Tensors to_tensors(at::Tensor output) { return {std::move(output)}; }
inline Tensors to_tensors(Tensors outputs) { return outputs; }
template <typename... T>
Tensors to_tensors(std::tuple<T...> outputs) {
  return std::apply([](auto&&... each) { return Tensors{std::move(each)...}; }, std::move(outputs));
}

// The inverse of to_tensors for a forward that returns a `Result`.
template <typename Result>
Result from_tensors(Tensors outputs) {
  if constexpr (std::is_same_v<Result, at::Tensor>) {
    return std::move(outputs[0]);
  } else if constexpr (std::is_same_v<Result, Tensors>) {
    return outputs;
  } else {
    return [&]<size_t... I>(std::index_sequence<I...>) { return Result{std::move(outputs[I])...}; }
    (std::make_index_sequence<std::tuple_size_v<Result>>());
  }
}

}  // namespace pipewright::modules

#endif  // PIPEWRIGHT_MODULES_TENSORS_H_
