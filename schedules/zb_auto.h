#ifndef PIPEWRIGHT_SCHEDULES_ZB_AUTO_H_
#define PIPEWRIGHT_SCHEDULES_ZB_AUTO_H_

#include "pipewright/schedules/schedule_spec.h"

namespace pipewright::schedules {

// ZB-1p and ZB-2p: zero-bubble schedules that a greedy algorithm plans for given times and a memory
// limit (Qi et al., Zero Bubble Pipeline Parallelism, arXiv 2401.10241, section 3.1; the authors'
// zb.py). One stage per rank. At the paper's times for 1.5 billion parameters, 8 ranks and 24
// microbatches (its tables 9 and 5):
//
//   1F1B     bubble .2431   memory of at most 8 activations
//   ZB-1p           .1585                     8
//   ZB-2p           .0433                    16
//
// Memory is counted in half activations, as in the paper: F takes two, I and W free one each. The
// limit is P activations for ZB-1p and 2P for ZB-2p, on each rank. So a rank may hold more
// activations than that between their I and W, but each of them counts one half.
//
// zb_auto.cc describes the algorithm. It takes time proportional to the number of actions.
extern const ScheduleSpec kZb1p;
extern const ScheduleSpec kZb2p;

}  // namespace pipewright::schedules

#endif  // PIPEWRIGHT_SCHEDULES_ZB_AUTO_H_
