#ifndef PIPEWRIGHT_COMMS_CHUNK_GATHER_H_
#define PIPEWRIGHT_COMMS_CHUNK_GATHER_H_

#include <ATen/core/Tensor.h>

#include <cstdint>

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

}  // namespace pipewright::comms

#endif  // PIPEWRIGHT_COMMS_CHUNK_GATHER_H_
