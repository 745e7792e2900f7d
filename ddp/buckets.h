#ifndef PIPEWRIGHT_DDP_BUCKETS_H_
#define PIPEWRIGHT_DDP_BUCKETS_H_

#include <cstddef>
#include <span>
#include <vector>

// The assignment of gradients to buckets. A bucket is a group of gradients that one all-reduce
// averages: few large reductions are faster than many small ones, and several buckets let reduction
// overlap with backward. No LibTorch.

namespace pipewright::ddp {

// One gradient.
struct GradSize {
  size_t bytes;
  int kind;  // a number per dtype and device; a bucket contains gradients of one kind
};

// Returns the indices of the gradients in each bucket. `order` lists the indices of `grads` in the
// order in which they are expected to become ready. A bucket is closed once it has at least
// `first_bytes` (the first of its kind) or `bytes` (the others). Closed buckets come first, in the
// order of closing, then the buckets that are still open. The rule is that of c10d's
// compute_bucket_assignment_by_size. A pure function; any thread.
//
//   assign_buckets({{4, 0}, {4, 0}, {4, 0}}, {2, 1, 0}, 4, 8)  // {{2}, {1, 0}}
std::vector<std::vector<size_t>> assign_buckets(std::span<const GradSize> grads,
                                                std::span<const size_t> order, size_t first_bytes,
                                                size_t bytes);

}  // namespace pipewright::ddp

#endif  // PIPEWRIGHT_DDP_BUCKETS_H_
