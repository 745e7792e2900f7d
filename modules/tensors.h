#ifndef PIPEWRIGHT_MODULES_TENSORS_H_
#define PIPEWRIGHT_MODULES_TENSORS_H_

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <span>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

// What a forward takes and returns, as a flat list: wrappers and stages pass that on.
//
//   to_tensors(std::tuple(output, std::tuple(hidden, cell)))        // {output, hidden, cell}
//   from_tensors<std::tuple<at::Tensor, at::Tensor>>({hidden, cell})
//
// A type consists of tensors if it is a tensor, or a tuple, pair, std::array, std::optional or
// std::vector of what consists of tensors. An absent optional is a list of undefined tensors. The
// length of a vector is not part of the list, so a vector must come last:
// std::tuple<at::Tensor, Tensors>.

namespace pipewright::modules {

using Tensors = std::vector<at::Tensor>;

// How many tensors a type consists of: `least`, or with a vector `least` or more.
struct NumTensors {
  size_t least = 0;
  bool or_more = false;
};

namespace tensors_internal {

template <typename T>
concept Optional = std::same_as<T, std::optional<typename T::value_type>>;
template <typename T>
concept Vector = std::same_as<T, std::vector<typename T::value_type>>;
template <typename T>
concept Tuple = requires {
  std::tuple_size<T>::value;
};

template <typename T>
constexpr std::optional<NumTensors> num_tensors();

template <typename T, size_t... I>
constexpr std::optional<NumTensors> num_tensors_of_tuple(std::index_sequence<I...> /*elements*/) {
  NumTensors sum;
  const std::array<std::optional<NumTensors>, sizeof...(I)> elements = {
      num_tensors<std::tuple_element_t<I, T>>()...};
  for (const std::optional<NumTensors>& each : elements) {
    if (!each || sum.or_more) return std::nullopt;
    sum = {sum.least + each->least, each->or_more};
  }
  return sum;
}

template <typename T>
constexpr std::optional<NumTensors> num_tensors() {
  if constexpr (std::is_same_v<T, at::Tensor>) {
    return NumTensors{1};
  } else if constexpr (Optional<T>) {
    return num_tensors<typename T::value_type>();
  } else if constexpr (Vector<T>) {
    constexpr auto kEach = num_tensors<typename T::value_type>();
    if (!kEach || kEach->least == 0 || kEach->or_more) return std::nullopt;
    return NumTensors{0, true};
  } else if constexpr (Tuple<T>) {
    return num_tensors_of_tuple<T>(std::make_index_sequence<std::tuple_size_v<T>>());
  } else {
    return std::nullopt;
  }
}

}  // namespace tensors_internal

template <typename T>
concept ConsistsOfTensors = tensors_internal::num_tensors<T>()
.has_value();

template <ConsistsOfTensors T>
inline constexpr NumTensors kNumTensors = *tensors_internal::num_tensors<T>();

template <ConsistsOfTensors T>
void append_tensors(T value, Tensors& to) {
  if constexpr (std::is_same_v<T, at::Tensor>) {
    to.push_back(std::move(value));
  } else if constexpr (tensors_internal::Optional<T>) {
    if (value)
      append_tensors(*std::move(value), to);
    else
      to.resize(to.size() + kNumTensors<T>.least);
  } else if constexpr (tensors_internal::Vector<T>) {
    for (auto& each : value) append_tensors(std::move(each), to);
  } else {
    std::apply([&](auto&... each) { (append_tensors(std::move(each), to), ...); }, value);
  }
}

template <ConsistsOfTensors T>
Tensors to_tensors(T value) {
  if constexpr (std::is_same_v<T, Tensors>) return value;
  Tensors tensors;
  append_tensors(std::move(value), tensors);
  return tensors;
}

// Moves the next T out of `from`, and advances `next`. Throws std::out_of_range if too few tensors
// are left.
template <ConsistsOfTensors T>
T take_tensors(Tensors& from, size_t& next) {
  if constexpr (std::is_same_v<T, at::Tensor>) {
    return std::move(from.at(next++));
  } else if constexpr (tensors_internal::Optional<T>) {
    std::span own = std::span(from).subspan(std::min(next, from.size()));
    if (!kNumTensors<T>.or_more) own = own.first(std::min(kNumTensors<T>.least, own.size()));
    const bool is_present = std::ranges::any_of(own, &at::Tensor::defined);
    T value = take_tensors<typename T::value_type>(from, next);
    if (!is_present) value.reset();
    return value;
  } else if constexpr (tensors_internal::Vector<T>) {
    T value;
    while (next < from.size()) value.push_back(take_tensors<typename T::value_type>(from, next));
    return value;
  } else {
    return [&]<size_t... I>(std::index_sequence<I...>) {
      return T{take_tensors<std::tuple_element_t<I, T>>(from, next)...};
    }
    (std::make_index_sequence<std::tuple_size_v<T>>());
  }
}

// The inverse of to_tensors. An optional whose tensors are all undefined is absent.
template <ConsistsOfTensors T>
T from_tensors(Tensors tensors) {
  if constexpr (std::is_same_v<T, Tensors>) return tensors;
  size_t next = 0;
  return take_tensors<T>(tensors, next);
}

// Lists of tensors without repetitions. A parameter that is registered under two names, as tied
// weights are, is in module->parameters() of LibTorch twice; what changes or counts each element
// of a list must do so once.

// Each tensor once, where it is first. Another tensor in the same memory is another one.
std::vector<at::Tensor> distinct(const std::vector<at::Tensor>& tensors);

// Gradients of parameters, each once, also if it is the gradient of several:
//
//   DistinctGrads grads;
//   for (const at::Tensor& parameter : parameters) {
//     if (const at::Tensor grad = grads.take(parameter); grad.defined()) grad.div_(2);
//   }
class DistinctGrads {
 public:
  // Undefined if the parameter has no gradient, or one without elements, or one in the memory of a
  // gradient that was taken before.
  at::Tensor take(const at::Tensor& parameter);

 private:
  // Where the memory begins: a storage and an offset, or a tensor without storage.
  std::set<std::pair<const void*, int64_t>> taken_;
};

}  // namespace pipewright::modules

#endif  // PIPEWRIGHT_MODULES_TENSORS_H_
