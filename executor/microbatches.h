#ifndef PIPEWRIGHT_EXECUTOR_MICROBATCHES_H_
#define PIPEWRIGHT_EXECUTOR_MICROBATCHES_H_

#include <map>
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
  // Extra inputs for single stages of this rank, by stage: they follow `extra`.
  std::map<int, std::vector<Tensors>> extra_of = {};
};

// One rank's tensors for a step. A list that this rank does not need may be empty.
//
//   // A mask for all stages of the rank, and for each microbatch its own offsets, of any size.
//   executor.step({.inputs = {tokens}, .extra = {mask},
//                  .per_microbatch = {.extra = {{offsets0}, {offsets1}}}});
struct Batch {
  Tensors inputs = {};   // of the first stage
  Tensors extra = {};    // for each stage of this rank, after the outputs of the previous stage
  Tensors targets = {};  // of the loss, on the rank of the last stage
  std::map<int, Tensors> extra_of = {};  // for single stages of this rank, after `extra`
  Microbatches per_microbatch = {};      // split already; after the other tensors of each list
};

// The dimension along which each tensor of a batch is split; none for a tensor that each microbatch
// receives whole. Tensors beyond the end of the list are split along dimension 0.
using SplitDims = std::vector<std::optional<int>>;

// How each list of a batch is split.
struct BatchDims {
  SplitDims inputs, extra, targets;
  std::map<int, SplitDims> extra_of;
};

// How each microbatch is cut further (ir::Schedule::slices): tensors that are split at all are cut
// along `dim`, of the sequence, into `count` equal parts.
struct Slicing {
  int count = 1;
  int dim = 1;
};

// "0 1 none", for messages.
std::string to_string(const SplitDims& dims);
std::optional<int> dim_of(const SplitDims& dims, size_t tensor);

// Returns one list of tensors per microbatch, or per slice, all of them views of the batch. Sizes
// of microbatches differ by at most one, the larger ones first, like torch.tensor_split; what is
// undefined stays so. Throws std::invalid_argument, naming `what` and the tensor, for a dimension
// that does not exist, that is smaller than the number of microbatches, or that slices do not
// divide; `help` ends the message. `num_microbatches` counts all slices.
std::vector<Tensors> split_batch(const Tensors& batch, int num_microbatches, const SplitDims& dims,
                                 const std::string& what, const std::string& help = "",
                                 const Slicing& slices = {});

// The inverse: concatenates each tensor along its dimension, and takes the mean over microbatches
// of a tensor that is not split. Scalars are concatenated to one element per microbatch; what is
// undefined in all microbatches stays so. Throws std::invalid_argument for another number of
// tensors than in the first microbatch, for tensors whose shapes do not allow it, and for the mean
// of a dtype that is neither floating-point nor complex.
Tensors merge_batch(const std::vector<Tensors>& microbatches, const SplitDims& dims,
                    const std::string& what, const Slicing& slices = {});

}  // namespace pipewright::executor

#endif  // PIPEWRIGHT_EXECUTOR_MICROBATCHES_H_
