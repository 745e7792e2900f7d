#ifndef PIPEWRIGHT_SCHEDULE_VERIFY_CERTIFICATE_H_
#define PIPEWRIGHT_SCHEDULE_VERIFY_CERTIFICATE_H_

#include <vector>

#include "pipewright/ir/schedule.h"
#include "pipewright/schedule/peak.h"
#include "pipewright/schedule/receive_slots.h"

namespace pipewright::schedule {

// The memory that a verified program needs on one rank.
struct RankCertificate {
  Peak<int> activations;       // live activations, see peak_activations()
  Peak<int> receive_buffers;   // each from its RECV to the end of the compute that uses it
  ReceiveSlots receive_slots;  // the same with buffers that are allocated once
  Peak<int> unsharded_stages;  // each from UNSHARD to RESHARD
};

// Certificates by rank, for a program that verify() accepts. A pure function, linear in the number
// of actions.
std::vector<RankCertificate> certify(const ir::Program& program);

}  // namespace pipewright::schedule

#endif  // PIPEWRIGHT_SCHEDULE_VERIFY_CERTIFICATE_H_
