#ifndef PIPEWRIGHT_COMMS_GLOO_KEPT_MEMORY_H_
#define PIPEWRIGHT_COMMS_GLOO_KEPT_MEMORY_H_

#include <ATen/core/Tensor.h>

#include <mutex>
#include <vector>

namespace pipewright::comms {

// Memory on the CPU that is needed again and again, but not all the time. Giving it back to malloc
// means that the system may have to provide every page of it anew, which takes longer than to write
// it. Thread-safe.
class KeptMemory {
 public:
  // A tensor of `bytes` bytes or more, whose values are undefined: the smallest one that is kept
  // and large enough, or a new one.
  at::Tensor take(int64_t bytes);
  // Keeps what take() returned, with what is kept already: the two largest.
  void give_back(at::Tensor memory);

 private:
  std::mutex mutex_;
  std::vector<at::Tensor> kept_;  // the largest first
};

}  // namespace pipewright::comms

#endif  // PIPEWRIGHT_COMMS_GLOO_KEPT_MEMORY_H_
