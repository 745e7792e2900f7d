#ifndef PIPEWRIGHT_EXECUTOR_TRANSFER_SHAPES_H_
#define PIPEWRIGHT_EXECUTOR_TRANSFER_SHAPES_H_

#include <functional>
#include <map>
#include <string>

#include "pipewright/comms/world.h"
#include "pipewright/executor/tensor_meta.h"
#include "pipewright/ir/action.h"

namespace pipewright::executor {

// The shapes, dtypes and gradients of all tensors that a rank sends and receives: a receiver must
// know them before it can post a RECV.
//
// They are given (`output_metas`) or learned: the first time that a result is sent, its sender also
// writes its shapes into the store, where the receiver finds them. Later steps must send the same
// shapes. Training and evaluation learn apart, because evaluation sends nothing that requires a
// gradient. For one thread at a time.
class TransferShapes {
 public:
  // The outputs of a stage for a microbatch.
  using OutputMetas = std::function<TensorMetas(int stage, int microbatch)>;

  // `key` is a prefix in the store that nothing else uses. `output_metas` may be empty.
  TransferShapes(comms::StorePtr store, std::string key, at::Device device,
                 OutputMetas output_metas);

  void begin_step(bool with_backward) { with_backward_ = with_backward; }
  // Forgets what was learned. Call it on all ranks between the same steps.
  void forget();

  // What `receive` receives; null while its sender has not written it. Asks the store at most.
  const TensorMetas* find(ir::ActionPart receive);

  // Checks the tensors of `send` against what its `receive` expects; writes their shapes to the
  // store the first time. Replaces a missing gradient by zeros where the first step had one. Throws
  // std::runtime_error if number, shape or dtype differ, or if there is a gradient where the first
  // step had none.
  void conform(ir::ActionPart send, ir::ActionPart receive, Tensors& tensors);

 private:
  std::string key_of(ir::ActionPart receive) const;

  const comms::StorePtr store_;
  const std::string key_;
  const at::Device device_;
  const OutputMetas output_metas_;

  bool with_backward_ = true;
  int generation_ = 0;                                // how often forget() was called
  std::map<ir::ActionPart, TensorMetas> learned_[2];  // by with_backward_, then by the RECV
};

}  // namespace pipewright::executor

#endif  // PIPEWRIGHT_EXECUTOR_TRANSFER_SHAPES_H_
