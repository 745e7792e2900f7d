#include "pipewright/ddp/buckets.h"

#include <map>
#include <utility>

namespace pipewright::ddp {

std::vector<std::vector<size_t>> assign_buckets(std::span<const Piece> pieces,
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
    Open& bucket = open[pieces[index].kind];
    bucket.members.push_back(index);
    bucket.size += pieces[index].bytes;
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
