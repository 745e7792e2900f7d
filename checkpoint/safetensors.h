#ifndef PIPEWRIGHT_CHECKPOINT_SAFETENSORS_H_
#define PIPEWRIGHT_CHECKPOINT_SAFETENSORS_H_

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "pipewright/ir/diagnostic.h"

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

// The header of a safetensors file, as a value, and its two text forms: bytes to header and back.
// The format (https://github.com/huggingface/safetensors, 0.8):
//
//   8 bytes      the size N of the header, little-endian, at most kMaxHeaderSize
//   N bytes      JSON: {"__metadata__": {"format": "pt"},
//                       "NAME": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}}
//   the rest     the tensors, little-endian and row-major; offsets count from here
//
// Pure functions; any thread.

// What a tensor is, without its data.
struct TensorSpec {
  std::string name;
  DType dtype;
  std::vector<int64_t> shape;

  friend bool operator==(const TensorSpec&, const TensorSpec&) = default;
};

// A tensor in a file: bytes `begin` to `end` of the file's data.
struct StoredTensor : TensorSpec {
  uint64_t begin = 0;
  uint64_t end = 0;

  friend bool operator==(const StoredTensor&, const StoredTensor&) = default;
};

using Metadata = std::map<std::string, std::string>;

struct SafetensorsHeader {
  std::vector<StoredTensor> tensors;  // in the order of their data, which they tile
  Metadata metadata;
  uint64_t data_begin = 0;  // offset of the data in the file

  uint64_t data_size() const { return tensors.empty() ? 0 : tensors.back().end; }

  friend bool operator==(const SafetensorsHeader&, const SafetensorsHeader&) = default;
};

inline constexpr uint64_t kMaxHeaderSize = 100'000'000;  // that of the reference implementation

struct ParsedSafetensors {
  // The header's text, to which the places of the diagnostics refer. It starts at byte 8 of the
  // file.
  ir::Source text;
  std::optional<SafetensorsHeader> header;  // nullopt if there are errors
};

// Parses the header of the file whose bytes are `file`. Adds everything that is wrong to the
// diagnostics: the format is checked in full, so the tensors of a valid header have the sizes that
// their shapes demand and tile the data without a gap, an overlap or a byte after them. The data
// themselves are not read. Linear in the size of the header, but for sorting.
ParsedSafetensors parse_safetensors(std::string file_name, std::string_view file,
                                    ir::Diagnostics* diagnostics);

// Lays out the data of a new file: widest type first, then by name, without gaps, so that every
// tensor is aligned to its type, and the data to 8 bytes. Throws std::invalid_argument if a name
// appears twice, is not UTF-8 or is `__metadata__`, a tensor's size is not a number of bytes, or
// the header would be larger than kMaxHeaderSize.
SafetensorsHeader lay_out_safetensors(std::vector<TensorSpec> tensors, Metadata metadata);

// The bytes of the file before its data: header.data_begin of them.
std::string safetensors_header_bytes(const SafetensorsHeader& header);

}  // namespace pipewright::checkpoint

#endif  // PIPEWRIGHT_CHECKPOINT_SAFETENSORS_H_
