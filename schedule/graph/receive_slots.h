#ifndef PIPEWRIGHT_SCHEDULE_GRAPH_RECEIVE_SLOTS_H_
#define PIPEWRIGHT_SCHEDULE_GRAPH_RECEIVE_SLOTS_H_

#include <vector>

#include "pipewright/ir/schedule.h"

namespace pipewright::schedule {

// The receive buffers that a stage needs at a time, by what it receives.
struct StageReceiveSlots {
  int stage = 0;
  int forward = 0;   // for RECV_F: outputs of the previous stage
  int backward = 0;  // for RECV_B: gradients of the next stage

  friend bool operator==(const StageReceiveSlots&, const StageReceiveSlots&) = default;
};

// The receive buffers that a rank allocates once and reuses (pytorch#196465). A buffer is occupied
// from its RECV to the end of the compute that uses it.
//
// Buffers of one size can be pooled for the whole rank. If sizes differ, each stage and direction
// has slots of its own, which takes at least as many.
struct ReceiveSlots {
  int pooled = 0;                         // one pool for the rank
  std::vector<StageReceiveSlots> stages;  // ascending; those that receive anything

  // The sum over stages and directions.
  int separate() const;

  friend bool operator==(const ReceiveSlots&, const ReceiveSlots&) = default;
};

// By rank, for a program that verify() accepts. A pure function, linear in the number of actions.
std::vector<ReceiveSlots> receive_slots(const ir::Program& program);

}  // namespace pipewright::schedule

#endif  // PIPEWRIGHT_SCHEDULE_GRAPH_RECEIVE_SLOTS_H_
