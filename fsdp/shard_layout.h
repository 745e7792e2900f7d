#ifndef PIPEWRIGHT_FSDP_SHARD_LAYOUT_H_
#define PIPEWRIGHT_FSDP_SHARD_LAYOUT_H_

#include <algorithm>
#include <cstdint>

// How a length is cut into chunks, one for each rank: as torch.chunk does it. No LibTorch.

namespace pipewright::fsdp {

// All chunks but the last ones have this length; behind the end they are shorter, or empty.
constexpr int64_t chunk_length(int64_t length, int64_t ranks) {
  return (length + ranks - 1) / ranks;
}

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
