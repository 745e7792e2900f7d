#ifndef PIPEWRIGHT_FSDP_SHARD_LAYOUT_H_
#define PIPEWRIGHT_FSDP_SHARD_LAYOUT_H_

#include <algorithm>
#include <cstdint>

// How a dimension is split into one chunk per rank, like torch.chunk. Without LibTorch.

namespace pipewright::fsdp {

// The length of the first chunks; chunks at the end may be shorter or empty.
constexpr int64_t chunk_length(int64_t length, int64_t ranks) {
  return (length + ranks - 1) / ranks;
}

// Elements [begin, begin + length) of the dimension.
struct Chunk {
  int64_t begin;
  int64_t length;
  bool operator==(const Chunk&) const = default;
};

constexpr Chunk chunk_of(int64_t length, int64_t ranks, int64_t rank) {
  const int64_t each = chunk_length(length, ranks);
  const int64_t begin = std::min(rank * each, length);
  return {begin, std::min(begin + each, length) - begin};
}

}  // namespace pipewright::fsdp

#endif  // PIPEWRIGHT_FSDP_SHARD_LAYOUT_H_
