#ifndef PIPEWRIGHT_PYTHON_TORCH_NCCL_H_
#define PIPEWRIGHT_PYTHON_TORCH_NCCL_H_

#include "pipewright/comms/nccl/nccl.h"

namespace pipewright::python {

// comms::nccl_backends(), which the extension module _nccl hands to _native in a capsule of this
// name. It is a library of its own, because it links what only a CUDA build of torch has; it is
// loaded only where stages are on a GPU.
using NcclBackends = decltype(&comms::nccl_backends);
inline constexpr const char* kNcclBackends = "pipewright::comms::nccl_backends";

}  // namespace pipewright::python

#endif  // PIPEWRIGHT_PYTHON_TORCH_NCCL_H_
