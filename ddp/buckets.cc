// Greedy assignment: one open bucket per kind, filled in the given order and closed at its limit.
//
// Invariant: within a bucket and within a kind, gradients keep the given order, so the buckets of
// one kind become ready in the order in which they are returned. A gradient is never split: the
// gradient that closes a bucket may exceed its limit, even alone. Complexity: O(n log k) for n
// gradients of k kinds.
#include "pipewright/ddp/buckets.h"

#include <map>
#include <utility>

namespace pipewright::ddp {

std::vector<std::vector<size_t>> assign_buckets(std::span<const GradSize> grads,
                                                std::span<const size_t> order, size_t first_bytes,
                                                size_t bytes) {
  struct Open {
    std::vector<size_t> members;
    size_t size = 0;
    bool first = true;  // of its kind
  };
  std::vector<std::vector<size_t>> closed;
  std::map<int, Open> open;  // by kind
  for (const size_t index : order) {
    Open& bucket = open[grads[index].kind];
    bucket.members.push_back(index);
    bucket.size += grads[index].bytes;
    if (bucket.size < (bucket.first ? first_bytes : bytes)) continue;
    closed.push_back(std::exchange(bucket.members, {}));
    bucket.size = 0;
    bucket.first = false;
  }
  for (auto& [kind, bucket] : open) {
    if (!bucket.members.empty()) closed.push_back(std::move(bucket.members));
  }
  return closed;
}

}  // namespace pipewright::ddp
