#ifndef PIPEWRIGHT_EXAMPLES_BATCH_H_
#define PIPEWRIGHT_EXAMPLES_BATCH_H_

#include <cstdint>
#include <vector>

#include "examples/options.h"
#include "examples/text.h"
#include "pipewright/comms/mesh.h"
#include "pipewright/executor/executor.h"

// The data of a step, and its loss: the mean over all tokens of the batch, whatever the parts are
// into which copies of the pipeline and microbatches cut it.

namespace pipewright::examples {

// Whether this rank is in the first copy of the pipeline, of those that train on different data.
bool in_first_copy(const comms::Mesh& mesh);

// This rank's part of a batch whose windows start at `starts`: inputs and targets, each [windows,
// context], on `device`, for which this does not wait. Copies of the pipeline have as many windows,
// or one more.
executor::Batch batch_of(const Text& text, const std::vector<int64_t>& starts,
                         const comms::Mesh& mesh, at::Device device);

// The loss of a microbatch: the sum over its tokens, divided by the number of tokens of the whole
// batch, times the number of copies, over which gradients are averaged. For an executor that does
// not scale gradients. `tp` as in gpt_loss().
executor::LossFunction make_loss(const Options& options, const comms::BackendPtr& tp);

// The loss of the step, a scalar on the device, from those of this rank's microbatches. Collective
// over `ranks`, those with the last stage of so many copies of the pipeline. Does not wait for the
// device.
at::Tensor total_loss(const std::vector<at::Tensor>& losses, c10d::Backend& ranks, int copies);

}  // namespace pipewright::examples

#endif  // PIPEWRIGHT_EXAMPLES_BATCH_H_
