#ifndef PIPEWRIGHT_EXECUTOR_MICROBATCHES_H_
#define PIPEWRIGHT_EXECUTOR_MICROBATCHES_H_

#include <optional>
#include <string>
#include <vector>

#include "pipewright/executor/stage.h"

namespace pipewright::executor {

// The microbatches of one step, by index. A list that this rank does not need may be empty.
struct Microbatches {
  std::vector<Tensors> inputs = {};  // of the first stage
  std::vector<Tensors> extra = {};   // of this rank: passed to each of its stages, after its inputs
  std::vector<Tensors> targets = {};  // of the loss
};

// The dimension along which each tensor of a batch is split; none for a tensor that each microbatch
// receives whole. Tensors beyond the end of the list are split along dimension 0.
using SplitDims = std::vector<std::optional<int>>;

// "0 1 none", for messages.
std::string to_string(const SplitDims& dims);

// Returns one list of tensors per microbatch, all of them views of the batch. Sizes differ by at
// most one, the larger ones first, like torch.tensor_split. Throws std::invalid_argument, naming
// `what` and the tensor, for a dimension that does not exist or that is smaller than the number of
// microbatches.
std::vector<Tensors> split_batch(const Tensors& batch, int num_microbatches, const SplitDims& dims,
                                 const std::string& what);

// The inverse: concatenates each tensor along its dimension, and takes the mean over microbatches
// of a tensor that is not split. Throws std::invalid_argument for a scalar with a dimension, and
// for the mean of a dtype that is neither floating-point nor complex.
Tensors merge_batch(const std::vector<Tensors>& microbatches, const SplitDims& dims,
                    const std::string& what);

}  // namespace pipewright::executor

#endif  // PIPEWRIGHT_EXECUTOR_MICROBATCHES_H_
