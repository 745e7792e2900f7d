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

// What a group is for, by its name:
//
//   channel.0-1[0,4]#0      kChannel: from rank 0 to rank 1 of the program (channels.h)
//   mesh.dp_shard[0,1]#0    kShard: "shard" is in the name of a mesh dimension
//   mesh.dp_replicate[0,2]#0  kReplicate: "replicate" is, and "shard" is not
//   mesh.tp[0,1]#0          kTensorParallel: the dimension "tp" alone
//   all others              kOther: other dimensions, tied parameters, make_group()
//
// In brackets are the world ranks of the members, after # how many groups had the same name and
// members before.
enum class GroupKind { kChannel, kShard, kReplicate, kTensorParallel, kOther };
GroupKind kind_of(const std::string& name);

// The defaults of a kind. None was measured.
//
//   kChannel         at most 4 CTAs: a RECV that is posted early is a kernel that spins until the
//                    peer has computed, and with NCCL's default of up to 32 CTAs two of them may
//                    take half of an H100 from computation. Where transfers over NVLink limit a
//                    step, allow more.
//   kReplicate       normal priority, as FSDP2's all-reduce over replicas has: nothing waits for it
//                    before the end of the backward
//   kShard, kTensorParallel, kOther
//                    high priority, as FSDP2's all-gathers have: kernels that were queued before
//                    would else delay what the next layer waits for
NcclGroupOptions nccl_defaults(GroupKind kind);

}  // namespace pipewright::comms

#endif  // PIPEWRIGHT_COMMS_NCCL_NCCL_OPTIONS_H_
