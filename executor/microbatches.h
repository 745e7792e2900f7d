#ifndef PIPEWRIGHT_EXECUTOR_MICROBATCHES_H_
#define PIPEWRIGHT_EXECUTOR_MICROBATCHES_H_

#include <optional>
#include <string>
#include <vector>

#include "pipewright/executor/stage.h"

namespace pipewright::executor {

// Along which dimension each tensor of a batch is split; none for one that every microbatch gets
// whole. Tensors beyond the list are split along dimension 0.
using SplitDims = std::vector<std::optional<int>>;

// "0 1 none", for messages.
std::string to_string(const SplitDims& dims);

// One list of tensors a microbatch, views of the batch's. Sizes differ by at most one, the larger
// ones first, as torch.tensor_split has it. Throws std::invalid_argument that names `what` and the
// tensor, for a dimension that is not there or has fewer elements than there are microbatches.
std::vector<Tensors> split_batch(const Tensors& batch, int num_microbatches, const SplitDims& dims,
                                 const std::string& what);

// The inverse: each tensor put together along its dimension; one that is not split becomes the mean
// over the microbatches. Throws std::invalid_argument where that cannot be.
Tensors merge_batch(const std::vector<Tensors>& microbatches, const SplitDims& dims,
                    const std::string& what);

}  // namespace pipewright::executor

#endif  // PIPEWRIGHT_EXECUTOR_MICROBATCHES_H_
