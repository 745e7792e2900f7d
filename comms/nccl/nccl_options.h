#ifndef PIPEWRIGHT_COMMS_NCCL_NCCL_OPTIONS_H_
#define PIPEWRIGHT_COMMS_NCCL_NCCL_OPTIONS_H_

#include <string>

namespace pipewright::comms {

// What a user chooses for a group over NCCL.
struct NcclGroupOptions {
  bool high_priority_stream = false;
  // Thread blocks that NCCL may use: fewer leave more of the GPU to computation.
  int min_ctas = 0, max_ctas = 0;  // 0: NCCL's default
  // NCCL's calls return before they are done, for example before the group is connected.
  bool nonblocking = false;
};

// Whether the group `name` is a channel of an executor: "executor.0.1#0[0,1]#0". All others have
// the name of what made them: "mesh.dp_shard[0,4]#0", "tied.weight[0,1]#0", or that of
// make_group().
bool is_channel(const std::string& name);

// The defaults of the group `name`. None was measured.
//
// A channel has at most 4 CTAs: a RECV that is posted early is a kernel that spins until the peer
// has computed, and with NCCL's default of up to 32 CTAs two of them may take half of an H100 from
// computation. Where transfers over NVLink limit a step, allow more. Every other group has a stream
// of high priority, as FSDP2's collectives have: kernels that were queued before would else delay
// what the next layer waits for.
NcclGroupOptions nccl_defaults(const std::string& name);

}  // namespace pipewright::comms

#endif  // PIPEWRIGHT_COMMS_NCCL_NCCL_OPTIONS_H_
