#ifndef PIPEWRIGHT_SCHEDULES_CHIMERA_H_
#define PIPEWRIGHT_SCHEDULES_CHIMERA_H_

#include "pipewright/schedules/schedule_spec.h"

namespace pipewright::schedules {

// Chimera (arXiv 2107.06925): two replicas of the model run in opposite directions, so that each
// fills the bubbles of the other. Rank r has stage r of replica 0 and stage P-1-r of replica 1. 4
// ranks, 4 stages, 4 microbatches, of which replica 0 runs 0 and 1, in slots of one F or B:
//
//   slot    0   1   2   3   4   5   6   7   8   9
//   rank 0  0F0     0F1 3F2 3B2 3F3 3B3 0B0     0B1
//   rank 1      1F0 2F2 1F1 2F3 2B2 1B0 2B3 1B1
//   rank 2      2.. the same with the replicas exchanged
//
// In slots, microbatch j of a replica runs on its stage s at 2j + s forward and at 2j + 2P-1-s
// backward: the two replicas use different slots. That goes on for P/2 microbatches of each; the
// next P/2 begin 2P slots later, in the slots that the first ones leave free (the paper's direct
// concatenation). Rows have the actions in the order of their slots, without the idle ones.
//
// Idle time per rank if F = B and P divides M: (P/2-1)(F+B), half of 1F1B's; with B = 2F and P
// microbatches it is (P-2)B, and more microbatches leave further gaps (the paper's forward
// doubling, which avoids them with twice the activations, is not here). Peak activations on rank r:
// P/2 + 1 + min(r, P-1-r) if there are P microbatches or more. Needs an even number of ranks and of
// microbatches. Generated in time n log n.
extern const ScheduleSpec kChimera;

}  // namespace pipewright::schedules

#endif  // PIPEWRIGHT_SCHEDULES_CHIMERA_H_
