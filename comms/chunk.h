#ifndef PIPEWRIGHT_COMMS_CHUNK_H_
#define PIPEWRIGHT_COMMS_CHUNK_H_

#include <algorithm>
#include <cstdint>

// How a dimension is split into one chunk per rank, like torch.chunk: all chunks have
// chunk_length() elements except those at the end, which may be shorter or empty. Without LibTorch.

namespace pipewright::comms {

// The length of the first chunks, which is the largest. `ranks` must be at least 1.
constexpr int64_t chunk_length(int64_t length, int64_t ranks) {
  return (length + ranks - 1) / ranks;
}

// Elements [begin, begin + length) of the dimension.
struct Chunk {
  int64_t begin;
  int64_t length;
  bool operator==(const Chunk&) const = default;
};

// The chunk of `rank`, which must be in [0, ranks).
constexpr Chunk chunk_of(int64_t length, int64_t ranks, int64_t rank) {
  const int64_t each = chunk_length(length, ranks);
  const int64_t begin = std::min(rank * each, length);
  return {begin, std::min(begin + each, length) - begin};
}

}  // namespace pipewright::comms

#endif  // PIPEWRIGHT_COMMS_CHUNK_H_
