#include "pipewright/executor/tensor_meta.h"

#include <cstring>
#include <stdexcept>

namespace pipewright::executor {

TensorMeta meta_of(const at::Tensor& tensor) {
  if (!tensor.defined())
    return {at::ScalarType::Undefined, {}, false, at::MemoryFormat::Contiguous};
  const at::MemoryFormat format =
      tensor.is_contiguous() ? at::MemoryFormat::Contiguous : tensor.suggest_memory_format();
  return {tensor.scalar_type(), tensor.sizes().vec(), tensor.requires_grad(), format};
}

TensorMetas metas_of(const Tensors& tensors) {
  TensorMetas metas;
  metas.reserve(tensors.size());
  for (const at::Tensor& tensor : tensors) metas.push_back(meta_of(tensor));
  return metas;
}

std::string to_string(const TensorMeta& meta) {
  if (meta.dtype == at::ScalarType::Undefined) return "undefined";
  std::string text = std::string(c10::toString(meta.dtype)) + " [";
  for (size_t i = 0; i < meta.sizes.size(); ++i)
    text += (i ? ", " : "") + std::to_string(meta.sizes[i]);
  return text + (meta.requires_grad ? "] with gradient" : "]");
}

// A list of int64: the number of tensors, then for each one dtype, requires_grad, memory
// format, number of dimensions and sizes.
std::vector<uint8_t> encode(const TensorMetas& metas) {
  std::vector<int64_t> words = {static_cast<int64_t>(metas.size())};
  for (const TensorMeta& meta : metas) {
    words.push_back(static_cast<int64_t>(meta.dtype));
    words.push_back(meta.requires_grad ? 1 : 0);
    words.push_back(static_cast<int64_t>(meta.memory_format));
    words.push_back(static_cast<int64_t>(meta.sizes.size()));
    words.insert(words.end(), meta.sizes.begin(), meta.sizes.end());
  }
  std::vector<uint8_t> bytes(words.size() * sizeof(int64_t));
  std::memcpy(bytes.data(), words.data(), bytes.size());
  return bytes;
}

TensorMetas decode(std::span<const uint8_t> bytes) {
  size_t at = 0;
  const auto next = [&] {
    int64_t word = 0;
    if (bytes.size() - at < sizeof(word))
      throw std::runtime_error("truncated tensor shapes from a peer");
    std::memcpy(&word, bytes.data() + at, sizeof(word));
    at += sizeof(word);
    return word;
  };
  TensorMetas metas(static_cast<size_t>(next()));
  for (TensorMeta& meta : metas) {
    meta.dtype = static_cast<at::ScalarType>(next());
    meta.requires_grad = next() != 0;
    meta.memory_format = static_cast<at::MemoryFormat>(next());
    meta.sizes.resize(static_cast<size_t>(next()));
    for (int64_t& size : meta.sizes) size = next();
  }
  return metas;
}

}  // namespace pipewright::executor
