#ifndef PIPEWRIGHT_EXAMPLES_ANY_RANK_H_
#define PIPEWRIGHT_EXAMPLES_ANY_RANK_H_

#include <c10/core/Device.h>

#include "pipewright/comms/world.h"

namespace pipewright::examples {

// Whether `mine` is true on some rank. Collective over `ranks`; waits for the device.
bool on_any_rank(bool mine, c10d::Backend& ranks, at::Device device);

}  // namespace pipewright::examples

#endif  // PIPEWRIGHT_EXAMPLES_ANY_RANK_H_
