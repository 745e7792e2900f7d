#ifndef PIPEWRIGHT_TP_COLLECTIVE_H_
#define PIPEWRIGHT_TP_COLLECTIVE_H_

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "pipewright/comms/world.h"

// What communication.h does in forward or with a gradient, without autograd: collectives on tensors
// of which each rank has a copy, a partial sum, or its chunk along one dimension.

namespace pipewright::tp {

struct Collective {
  enum class Kind { kNothing, kAllReduce, kAllGather, kReduceScatter, kOwnChunk };
  Kind kind;
  int64_t dim = 0;     // along which there are chunks
  int64_t length = 0;  // of the whole tensor along `dim`
};

// A collective that has begun. Keep it until finish(), which is called once.
class PostedCollective {
 public:
  // The result. The current stream waits for it, as Work::wait() does.
  at::Tensor finish();

 private:
  friend PostedCollective post(const at::Tensor& x, const Collective& collective,
                               const comms::BackendPtr& group);
  at::Tensor input_, output_;  // of the backend
  Collective collective_;
  comms::BackendPtr group_;
  c10::intrusive_ptr<c10d::Work> work_;  // null if nothing is communicated
};

// Reductions are under way when this returns, an all-gather has ended. Leaves `x` as it is, and is
// to be called without grad mode. Throws std::invalid_argument for kAllGather if `x` is not this
// rank's chunk.
PostedCollective post(const at::Tensor& x, const Collective& collective,
                      const comms::BackendPtr& group);

inline at::Tensor run(const at::Tensor& x, const Collective& collective,
                      const comms::BackendPtr& group) {
  return post(x, collective, group).finish();
}

}  // namespace pipewright::tp

#endif  // PIPEWRIGHT_TP_COLLECTIVE_H_
