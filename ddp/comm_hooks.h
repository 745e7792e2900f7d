#ifndef PIPEWRIGHT_DDP_COMM_HOOKS_H_
#define PIPEWRIGHT_DDP_COMM_HOOKS_H_

#include <functional>

#include "pipewright/comms/world.h"

namespace pipewright::ddp {

// How a bucket is averaged. Starts a reduction of `bucket`, a flat tensor, and returns what waits
// for it; when that returns, `bucket` holds the average over the group on the current stream.
using CommHook = std::function<std::function<void()>(at::Tensor bucket, comms::BackendPtr group)>;

// What holds where nobody says otherwise.
CommHook all_reduce_hook();
// Reduces in half the bytes, and in the precision, of float16 and bfloat16.
CommHook fp16_compress_hook();
CommHook bf16_compress_hook();

}  // namespace pipewright::ddp

#endif  // PIPEWRIGHT_DDP_COMM_HOOKS_H_
