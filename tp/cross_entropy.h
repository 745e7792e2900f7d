#ifndef PIPEWRIGHT_TP_CROSS_ENTROPY_H_
#define PIPEWRIGHT_TP_CROSS_ENTROPY_H_

#include <ATen/core/Reduction.h>
#include <ATen/core/Tensor.h>

#include <cstdint>

#include "pipewright/comms/world.h"

namespace pipewright::tp {

struct CrossEntropyOptions {
  at::Reduction::Reduction reduction = at::Reduction::Mean;  // over targets that are not ignored
  int64_t ignore_index = -100;
};

// Cross entropy of logits that are split over the vocabulary, which no rank ever has as a whole.
// PyTorch's loss_parallel; the algorithm is that of Shoeybi et al., "Megatron-LM", 2019.
//
//   // The output layer is colwise_parallel(), so its logits are [batch, context, own tokens].
//   at::Tensor loss = tp::cross_entropy(logits, targets, vocabulary, mesh.group({"tp"}));
//
// `logits` are this rank's chunk along the last dimension, split as by torch.chunk
// (layout/layout.h): chunks may be of different length or empty. `targets` has the other dimensions
// and tokens of the whole vocabulary. The result is the same on all ranks of `group`, in fp64 for
// such logits and otherwise in fp32. On a device, a target outside of the vocabulary makes the loss
// NaN.
//
// Collective over `group`, on equal targets: two all-reduces in forward, of one value and of two
// values per target; none in backward.
//
// Throws std::invalid_argument if `logits` is not this rank's chunk, if `targets` has another shape
// or is not int64, and on the CPU for a target outside of the vocabulary that is not ignored.
at::Tensor cross_entropy(const at::Tensor& logits, const at::Tensor& targets, int64_t vocabulary,
                         const comms::BackendPtr& group, const CrossEntropyOptions& options = {});

}  // namespace pipewright::tp

#endif  // PIPEWRIGHT_TP_CROSS_ENTROPY_H_
