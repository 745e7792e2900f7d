#include "pipewright/checkpoint/safetensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <utility>

#include "pipewright/ir/check.h"

namespace pipewright::checkpoint {
namespace {

constexpr std::string_view kNames[] = {
#define PW_DTYPE(enumerator, name, bits) name,
#include "pipewright/checkpoint/dtypes.def"
#undef PW_DTYPE
};

constexpr int kBits[] = {
#define PW_DTYPE(enumerator, name, bits) bits,
#include "pipewright/checkpoint/dtypes.def"
#undef PW_DTYPE
};

}  // namespace

std::string_view name(DType dtype) { return kNames[static_cast<size_t>(dtype)]; }

std::span<const std::string_view> dtype_names() { return kNames; }

std::optional<DType> parse_dtype(std::string_view name) {
  const auto* found = std::ranges::find(kNames, name);
  if (found == std::end(kNames)) return std::nullopt;
  return static_cast<DType>(found - std::begin(kNames));
}

int bits(DType dtype) { return kBits[static_cast<size_t>(dtype)]; }

std::optional<uint64_t> bytes_of(DType dtype, std::span<const int64_t> shape) {
  auto total = static_cast<uint64_t>(bits(dtype));
  for (const int64_t size : shape) {
    if (size < 0 || __builtin_mul_overflow(total, static_cast<uint64_t>(size), &total))
      return std::nullopt;
  }
  if (total % 8 != 0) return std::nullopt;
  return total / 8;
}

namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr size_t kSizeBytes = 8;  // the header's size, at the start of the file

std::string header_text(const SafetensorsHeader& header) {
  std::string text = "{";
  const auto add = [&](std::string_view key, const OrderedJson& value) {
    if (text.size() > 1) text += ',';
    text += OrderedJson(key).dump() + ":" + value.dump();
  };
  try {
    if (!header.metadata.empty()) add("__metadata__", header.metadata);
    for (const StoredTensor& tensor : header.tensors)
      add(tensor.name, {{"dtype", name(tensor.dtype)},
                        {"shape", tensor.shape},
                        {"data_offsets", {tensor.begin, tensor.end}}});
  } catch (const OrderedJson::type_error& error) {
    throw std::invalid_argument(
        fmt::format("expected names and metadata in UTF-8: {}", error.what()));
  }
  text += '}';
  // Spaces may follow the JSON. These align the data.
  text.resize((kSizeBytes + text.size() + 7) / 8 * 8 - kSizeBytes, ' ');
  return text;
}

}  // namespace

SafetensorsHeader lay_out_safetensors(std::vector<TensorSpec> tensors, Metadata metadata) {
  std::ranges::sort(tensors, [](const TensorSpec& left, const TensorSpec& right) {
    return std::pair(-bits(left.dtype), std::string_view(left.name)) <
           std::pair(-bits(right.dtype), std::string_view(right.name));
  });
  SafetensorsHeader header;
  header.metadata = std::move(metadata);
  std::vector<std::string_view> names;
  for (TensorSpec& tensor : tensors) {
    if (tensor.name == "__metadata__")
      throw std::invalid_argument("expected a tensor's name, got `__metadata__`");
    const std::optional<uint64_t> bytes = bytes_of(tensor.dtype, tensor.shape);
    uint64_t end = 0;
    if (!bytes || __builtin_add_overflow(header.data_size(), *bytes, &end))
      throw std::invalid_argument(
          fmt::format("tensor `{}`: expected a whole number of bytes below 2^64", tensor.name));
    const uint64_t begin = header.data_size();
    header.tensors.push_back({std::move(tensor), begin, end});
  }
  for (const StoredTensor& tensor : header.tensors) names.push_back(tensor.name);
  std::ranges::sort(names);
  if (const auto twin = std::ranges::adjacent_find(names); twin != names.end())
    throw std::invalid_argument(fmt::format("expected one tensor `{}`, got two", *twin));
  const size_t size = header_text(header).size();
  if (size > kMaxHeaderSize)
    throw std::invalid_argument(
        fmt::format("expected a header of at most {} bytes, got {}: write "
                    "the tensors to several files",
                    kMaxHeaderSize, size));
  header.data_begin = kSizeBytes + size;
  return header;
}

std::string safetensors_header_bytes(const SafetensorsHeader& header) {
  const std::string text = header_text(header);
  std::string bytes;
  for (size_t index = 0; index < kSizeBytes; ++index)
    bytes += static_cast<char>(text.size() >> (8 * index) & 0xFF);
  bytes += text;
  PW_CHECK(bytes.size() == header.data_begin, "the header is one of lay_out_safetensors");
  return bytes;
}

}  // namespace pipewright::checkpoint
