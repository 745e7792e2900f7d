#ifndef PIPEWRIGHT_COMMS_GROUP_COLLECTIVES_H_
#define PIPEWRIGHT_COMMS_GROUP_COLLECTIVES_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "pipewright/comms/world.h"

// Tensors that are split into one chunk per rank of a group along one dimension (layout.h).

namespace pipewright::comms {

// This rank's chunk of `whole`, as a view.
at::Tensor chunk_of(const at::Tensor& whole, int64_t dim, c10d::Backend& group);

// `x`, a tensor with dimension `dim` first, contiguous, and padded there with zeros to `padded`.
at::Tensor padded_rows(const at::Tensor& x, int64_t dim, int64_t padded);

// The whole tensor, of size `length` along `dim`, from each rank's chunk `mine`, which must have
// its size. Collective: one all-gather of chunks that are padded to the length of the first. Waits
// as Work::wait() does.
at::Tensor gather_chunks(const at::Tensor& mine, int64_t dim, int64_t length, c10d::Backend& group);

// Checks that every rank of `group` passes the same lines, such as "`weight`, Float [3, 4]". If
// not, throws the same std::invalid_argument on every rank: it shows the first line that differs
// from rank 0's, on the first such rank. Lines may name `device`: its index does not count, as each
// rank may have its own. Collective and blocking; communicates through `device`, which the group's
// backend must support.
void compare_lines(const std::vector<std::string>& lines, c10d::Backend& group, at::Device device);

// The text of the first rank of `group` whose text is not empty, on every rank; empty if all are.
// Collective and blocking, as above.
std::string first_text(const std::string& text, c10d::Backend& group, at::Device device);

// Copies rank 0's values of `tensors` to all ranks of `group`. Shapes and dtypes must be the same
// on every rank. Collective and blocking.
void broadcast_values(const std::vector<at::Tensor>& tensors, c10d::Backend& group);

}  // namespace pipewright::comms

#endif  // PIPEWRIGHT_COMMS_GROUP_COLLECTIVES_H_
