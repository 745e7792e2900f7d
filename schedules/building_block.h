#ifndef PIPEWRIGHT_SCHEDULES_BUILDING_BLOCK_H_
#define PIPEWRIGHT_SCHEDULES_BUILDING_BLOCK_H_

#include <array>
#include <vector>

#include "pipewright/schedules/schedule_spec.h"

// V schedules from a building block (Qi et al., Pipeline Parallelism with Controllable Memory,
// arXiv 2405.15362): one microbatch is laid out over the ranks in slots of one chunk's forward, and
// repeated every 6 slots, which is the work of a microbatch on a rank. How long its activations
// live in the block decides how many of them live at a time. P ranks hold 2P stages, stage r and
// stage 2P-1-r on rank r.

namespace pipewright::schedules {

// The first slots of one microbatch's actions on one rank. Modulo 6 no two share a slot.
struct BlockSlots {
  int forward_down;   // F of stage r
  int forward_up;     // F of stage 2P-1-r
  int backward_down;  // its B, in the order of the ranks
  int backward_up;    // B of stage r
};

// The rows that come of it, without idle slots. In three steps:
//
//   repeat   microbatch m stands 6 m slots behind the block
//   pull     in the order of time, each action moves to the first free slot behind what it needs
//   that
//            does not raise the peak of its rank: the warm-up, where nothing is in its way
//   fill     with split backwards, which take one slot each, the order of F and I stays; a W goes
//            wherever a rank would wait, or where its activations leave no room for the next F
//
// A whole backward takes two slots. `block` has one entry a rank. Linear in the number of actions.
ir::Rows repeat_block(const Shape& shape, const std::vector<BlockSlots>& block,
                      bool splits_backward);

}  // namespace pipewright::schedules

#endif  // PIPEWRIGHT_SCHEDULES_BUILDING_BLOCK_H_
