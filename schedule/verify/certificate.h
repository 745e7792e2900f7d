#ifndef PIPEWRIGHT_SCHEDULE_VERIFY_CERTIFICATE_H_
#define PIPEWRIGHT_SCHEDULE_VERIFY_CERTIFICATE_H_

#include <vector>

#include "pipewright/ir/schedule.h"
#include "pipewright/schedule/graph/peak.h"
#include "pipewright/schedule/graph/receive_slots.h"

namespace pipewright::schedule {

// What a verified program needs on one rank.
struct RankCertificate {
  Peak<int> activations;       // live activations, see peak_activations()
  Peak<int> receive_buffers;   // each from its RECV to the end of the compute that uses it
  ReceiveSlots receive_slots;  // the same with buffers that are allocated once
  Peak<int> unsharded_stages;  // each from UNSHARD to RESHARD
  int communicators = 0;       // see communicators_per_rank()
};

// Certificates by rank, for a program that verify() accepts. A pure function, linear in the number
// of actions.
std::vector<RankCertificate> certify(const ir::Program& program);

// The communicators that each rank has for its SENDs and RECVs under the program's channel model
// (ir/channel.h), as comms/channels.h makes them: with `edge` one per peer and direction that it
// uses, with `peer` one per peer, with `rank` the one that all ranks share. Linear in the number of
// actions.
std::vector<int> communicators_per_rank(const ir::Program& program);

}  // namespace pipewright::schedule

#endif  // PIPEWRIGHT_SCHEDULE_VERIFY_CERTIFICATE_H_
