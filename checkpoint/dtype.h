#ifndef PIPEWRIGHT_CHECKPOINT_DTYPE_H_
#define PIPEWRIGHT_CHECKPOINT_DTYPE_H_

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

// The element types that a safetensors file can store. Constant data; any thread.

namespace pipewright::checkpoint {

enum class DType : uint8_t {
#define PW_DTYPE(enumerator, name, bits) enumerator,
#include "pipewright/checkpoint/dtypes.def"
#undef PW_DTYPE
};

// "F32".
std::string_view name(DType dtype);
// The names of all types, in the order of dtypes.def.
std::span<const std::string_view> dtype_names();
// The type with that name; nullopt if there is none.
std::optional<DType> parse_dtype(std::string_view name);
// The size of an element: 32 for kF32, 4 for kF4.
int bits(DType dtype);

// The size of a tensor; nullopt if it does not fit 64 bits or is not a whole number of bytes.
std::optional<uint64_t> bytes_of(DType dtype, std::span<const int64_t> shape);

}  // namespace pipewright::checkpoint

#endif  // PIPEWRIGHT_CHECKPOINT_DTYPE_H_
