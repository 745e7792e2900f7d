#ifndef PIPEWRIGHT_EXECUTOR_TENSOR_META_H_
#define PIPEWRIGHT_EXECUTOR_TENSOR_META_H_

#include <c10/core/MemoryFormat.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "pipewright/executor/stage.h"

namespace pipewright::executor {

// The metadata that a receiver must know about a tensor before it arrives.
struct TensorMeta {
  at::ScalarType dtype = at::kFloat;  // Undefined for an undefined tensor
  std::vector<int64_t> sizes;
  // For an output: whether its gradient flows back. For a gradient: whether it exists; if it does
  // not, nothing is sent.
  bool requires_grad = false;
  at::MemoryFormat memory_format = at::MemoryFormat::Contiguous;  // or one of channels_last

  friend bool operator==(const TensorMeta&, const TensorMeta&) = default;
};

using TensorMetas = std::vector<TensorMeta>;

// An undefined tensor has no sizes and no gradient.
TensorMeta meta_of(const at::Tensor& tensor);
TensorMetas metas_of(const Tensors& tensors);

// "Float [2, 3]", "Float [2, 3] with gradient", "undefined".
std::string to_string(const TensorMeta& meta);

// To and from bytes, for a store. decode() throws std::runtime_error for bytes that encode() did
// not write.
std::vector<uint8_t> encode(const TensorMetas& metas);
TensorMetas decode(std::span<const uint8_t> bytes);

}  // namespace pipewright::executor

#endif  // PIPEWRIGHT_EXECUTOR_TENSOR_META_H_
