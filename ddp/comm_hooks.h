#ifndef PIPEWRIGHT_DDP_COMM_HOOKS_H_
#define PIPEWRIGHT_DDP_COMM_HOOKS_H_

#include <functional>

#include "pipewright/comms/world.h"

namespace pipewright::ddp {

// A communication hook: the function that averages one bucket, as in PyTorch's
// DistributedDataParallel.register_comm_hook. It starts a reduction of `bucket`, a flat tensor, and
// returns a function that waits for it; once that has returned, `bucket` holds the average over the
// group on the current stream. Called on the thread of backward; it should not block.
using CommHook = std::function<std::function<void()>(at::Tensor bucket, comms::BackendPtr group)>;

// The default: an all-reduce with AVG; in fp16 as modules/reduction.h says.
CommHook all_reduce_hook();
// Communicate in float16 or bfloat16: half the bytes of float32, at the lower precision of that
// type. Like PyTorch's hooks of the same names.
CommHook fp16_compress_hook();
CommHook bf16_compress_hook();

}  // namespace pipewright::ddp

#endif  // PIPEWRIGHT_DDP_COMM_HOOKS_H_
