#ifndef PIPEWRIGHT_COMMS_NCCL_NCCL_OPTIONS_H_
#define PIPEWRIGHT_COMMS_NCCL_NCCL_OPTIONS_H_

namespace pipewright::comms {

// What a user chooses for a group over NCCL.
struct NcclGroupOptions {
  bool high_priority_stream = false;
  // Thread blocks that NCCL may use: fewer leave more of the GPU to computation.
  int min_ctas = 0, max_ctas = 0;  // 0: NCCL's default
  // NCCL's calls return before they are done, for example before the group is connected.
  bool nonblocking = false;
};

}  // namespace pipewright::comms

#endif  // PIPEWRIGHT_COMMS_NCCL_NCCL_OPTIONS_H_
