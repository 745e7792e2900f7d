#ifndef PIPEWRIGHT_EXECUTOR_BATCH_CHECK_H_
#define PIPEWRIGHT_EXECUTOR_BATCH_CHECK_H_

#include <optional>
#include <string>
#include <vector>

#include "pipewright/executor/microbatches.h"
#include "pipewright/executor/tensor_meta.h"

namespace pipewright::executor {

// What one rank's batch must look like: checked before a step, so that a wrong batch is reported
// before anything has run. For one thread at a time.
class BatchCheck {
 public:
  struct Options {
    int num_microbatches = 0;
    bool needs_inputs = false;   // this rank has the first stage
    bool needs_targets = false;  // this rank has the last stage, and a loss that takes targets
    bool same_shapes = false;    // all training steps must have the shapes of the first one
  };
  explicit BatchCheck(Options options) : options_(options) {}

  // Throws std::invalid_argument if the number of microbatches is wrong, if inputs are missing, or
  // if targets are missing in a training step; with same_shapes also if a tensor's dtype or shape
  // differs from the first training step's.
  // Inputs and targets that this rank does not need are ignored.
  void check(const Microbatches& microbatches, bool with_backward) const;
  // The dtypes and shapes of the tensors that this rank needs, one per line; none if check() has
  // compared them with those of the first step.
  std::vector<std::string> describe(const Microbatches& microbatches, bool with_backward) const;
  // Makes this batch the first training step's, unless there was one, or the last evaluation's.
  void remember(const Microbatches& microbatches, bool with_backward);
  // Whether the last evaluation had other shapes.
  bool differs_from_last_evaluation(const Microbatches& microbatches) const;
  void forget(bool with_backward) { first_[with_backward].reset(); }

 private:
  // By microbatch; empty if the batch has no such tensors.
  struct Shapes {
    std::vector<TensorMetas> inputs, extra, targets;

    friend bool operator==(const Shapes&, const Shapes&) = default;
  };
  Shapes shapes_of(const Microbatches& microbatches) const;  // of what this rank needs

  const Options options_;
  std::optional<Shapes> first_[2];  // by with_backward: the last evaluation, the first step
};

}  // namespace pipewright::executor

#endif  // PIPEWRIGHT_EXECUTOR_BATCH_CHECK_H_
