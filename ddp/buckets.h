#ifndef PIPEWRIGHT_DDP_BUCKETS_H_
#define PIPEWRIGHT_DDP_BUCKETS_H_

#include <cstddef>
#include <span>
#include <vector>

// Which gradients are reduced together. No LibTorch.

namespace pipewright::ddp {

// One gradient: how large it is, and what it can be put together with.
struct Piece {
  size_t bytes;
  int kind;  // only pieces of a kind, that is of a dtype and device, share a bucket
};

// Indices of the pieces of each bucket. Pieces come in the order of `order`, and a bucket is closed
// once it holds `first_bytes` (the first) or `bytes` (the others); buckets stand in the order in
// which they are closed, those that stay open last. As c10d's compute_bucket_assignment_by_size.
std::vector<std::vector<size_t>> assign_buckets(std::span<const Piece> pieces,
                                                std::span<const size_t> order, size_t first_bytes,
                                                size_t bytes);

}  // namespace pipewright::ddp

#endif  // PIPEWRIGHT_DDP_BUCKETS_H_
