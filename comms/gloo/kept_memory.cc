#include "pipewright/comms/gloo/kept_memory.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <utility>

namespace pipewright::comms {

constexpr size_t kMost = 2;  // what is sent and what is received

at::Tensor KeptMemory::take(int64_t bytes) {
  {
    const std::lock_guard lock(mutex_);
    for (auto kept = kept_.rbegin(); kept != kept_.rend(); ++kept) {
      if (kept->numel() < bytes) continue;
      at::Tensor taken = std::move(*kept);
      kept_.erase(std::next(kept).base());
      return taken;
    }
  }
  return at::empty({bytes}, at::kByte);
}

void KeptMemory::give_back(at::Tensor memory) {
  const std::lock_guard lock(mutex_);
  const auto is_smaller = [&](const at::Tensor& kept) { return kept.numel() < memory.numel(); };
  kept_.insert(std::ranges::find_if(kept_, is_smaller), std::move(memory));
  if (kept_.size() > kMost) kept_.pop_back();
}

}  // namespace pipewright::comms
