#ifndef PIPEWRIGHT_EXAMPLES_ANY_RANK_H_
#define PIPEWRIGHT_EXAMPLES_ANY_RANK_H_

#include <ATen/core/Tensor.h>

#include "pipewright/comms/world.h"

namespace pipewright::examples {

// 1 on the device if `mine` is true on some rank, otherwise 0. Collective over `ranks`.
at::Tensor any_rank(bool mine, c10d::Backend& ranks, at::Device device);
// The same on the host, which waits for the device.
bool on_any_rank(bool mine, c10d::Backend& ranks, at::Device device);

}  // namespace pipewright::examples

#endif  // PIPEWRIGHT_EXAMPLES_ANY_RANK_H_
