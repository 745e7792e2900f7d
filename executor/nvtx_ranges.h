#ifndef PIPEWRIGHT_EXECUTOR_NVTX_RANGES_H_
#define PIPEWRIGHT_EXECUTOR_NVTX_RANGES_H_

#include <ATen/record_function.h>

namespace pipewright::executor {

// Shows NVIDIA's tools, such as Nsight Systems, what the host does: while an object exists, each
// action of an executor's step is an NVTX range of the name that it has in torch's profiler
// (`PP:0F3`), and so is every other user scope of torch (RECORD_USER_SCOPE), on all threads. As
// torch.autograd.profiler.emit_nvtx in Python. For one object at a time.
//
//   const executor::NvtxRanges ranges;
//   executor.step(batch);
//
// Costs next to nothing if no tool listens.
class NvtxRanges {
 public:
  NvtxRanges();
  ~NvtxRanges();
  NvtxRanges(const NvtxRanges&) = delete;
  NvtxRanges& operator=(const NvtxRanges&) = delete;

 private:
  const at::CallbackHandle handle_;
};

}  // namespace pipewright::executor

#endif  // PIPEWRIGHT_EXECUTOR_NVTX_RANGES_H_
