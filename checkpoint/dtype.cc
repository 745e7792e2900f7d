#include "pipewright/checkpoint/dtype.h"

#include <algorithm>
#include <cstddef>

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

}  // namespace pipewright::checkpoint
