#ifndef PIPEWRIGHT_EXECUTOR_TRANSFER_SHAPES_H_
#define PIPEWRIGHT_EXECUTOR_TRANSFER_SHAPES_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "pipewright/comms/world.h"
#include "pipewright/executor/tensor_meta.h"
#include "pipewright/ir/action.h"

namespace pipewright::executor {

// The metadata (shape, dtype, requires_grad) of all tensors that a rank sends and receives: a
// receiver must know them before it can post a RECV.
//
// It comes from `output_metas` or is learned: the first time that a result is sent, its sender also
// writes its metadata to the store, where the receiver reads it. Later steps must send the same
// shapes and dtypes. Training and evaluation learn separately, because evaluation sends nothing
// that requires a gradient.
//
// What may be missing is learned again in every step: the gradients of a transfer, once one has
// been missing, its outputs, once one has been undefined, and while none of them requires a
// gradient, because frozen parameters may be trained later. In the other direction nothing has to
// be learned: a gradient that is missing for the first time is sent as zeros (as PyTorch does), and
// one that a frozen stage receives is ignored.
//
// Dynamic shapes may differ in every step and microbatch. Then the store is not used: a header, a
// message of fixed size, precedes the tensors of each transfer (header(), read_header()). It says
// "as before" as long as a transfer's metadata do not change. For one thread at a time.
class TransferShapes {
 public:
  static constexpr int64_t kHeaderWords = 32;

  // The outputs of a stage for a microbatch.
  using OutputMetas = std::function<TensorMetas(int stage, int microbatch)>;

  // `key` is a prefix in the store that nothing else uses. `output_metas` may be empty.
  TransferShapes(comms::StorePtr store, std::string key, at::Device device,
                 OutputMetas output_metas, bool dynamic);

  bool dynamic() const { return dynamic_; }

  void begin_step(bool with_backward);
  // Forgets what was learned in training or in evaluation. All ranks must call it between the same
  // two steps.
  void forget(bool with_backward);
  // After a failed step, in which ranks may have come to different places: forgets everything.
  void reset();

  // Returns the metadata of the tensors of `receive`; null until its sender has written it. Queries
  // the store at most once, and does not wait. With dynamic shapes: what the last header said.
  const TensorMetas* find(ir::ActionPart receive);

  // Polls the store until find() would succeed, but not longer than `slice`.
  void wait(ir::ActionPart receive, std::chrono::milliseconds slice) const;
  // The key under which the sender writes the metadata of `receive`, and the effect of its value.
  std::string key_of(ir::ActionPart receive) const;
  void learn(ir::ActionPart receive, const std::string& value);

  // Checks the tensors of `send` against what its `receive` expects; writes their shapes to the
  // store if they are to be learned. Replaces a missing gradient by zeros where one is expected.
  // Throws std::runtime_error if number, shape or dtype differ, or if one requires a gradient where
  // only others did.
  void conform(ir::ActionPart send, ir::ActionPart receive, Tensors& tensors);

  // With dynamic shapes: the messages before the tensors of a SEND to `receive`. A second one
  // follows if the metadata do not fit into the header. Undefined gradients are not sent.
  Tensors header(ir::ActionPart receive, const Tensors& tensors);
  // The same at the receiver, of messages in host memory: takes the header and returns the number
  // of words of the second message, 0 if there is none; then find() knows the metadata.
  int64_t read_header(ir::ActionPart receive, const at::Tensor& header);
  void read_rest(ir::ActionPart receive, const at::Tensor& rest);

 private:
  struct Known {
    TensorMetas metas;
    int64_t step = 0;         // in which they were learned
    bool has_missed = false;  // then or before
  };

  // What is known and need not be learned again; null if there is nothing.
  const TensorMetas* current(ir::ActionPart receive) const;
  // Whether a tensor is missing that may be there in another step.
  bool misses(ir::ActionPart receive, const TensorMetas& metas) const;
  void know(ir::ActionPart receive, TensorMetas metas);
  void learn_words(ir::ActionPart receive, const at::Tensor& words);

  const comms::StorePtr store_;
  const std::string key_;
  const at::Device device_;
  const OutputMetas output_metas_;
  const bool dynamic_;

  bool with_backward_ = true;
  int generation_ = 0;                          // number of calls of reset()
  int64_t step_ = 0;                            // in this generation
  std::map<ir::ActionPart, Known> learned_[2];  // by with_backward_, then by the RECV
};

}  // namespace pipewright::executor

#endif  // PIPEWRIGHT_EXECUTOR_TRANSFER_SHAPES_H_
