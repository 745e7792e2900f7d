#ifndef PIPEWRIGHT_SCHEDULES_BUILDING_BLOCK_H_
#define PIPEWRIGHT_SCHEDULES_BUILDING_BLOCK_H_

#include <array>
#include <string_view>
#include <vector>

#include "pipewright/schedules/schedule_spec.h"

// Generates V schedules from a building block (Qi et al., Pipeline Parallelism with Controllable
// Memory, arXiv 2405.15362; the authors' zbv_greedy.py and v1f1b.py).
//
// P ranks hold 2P stages, stages r and 2P-1-r on rank r. A building block places the actions of one
// microbatch on all ranks in time slots, where a slot is the forward of one stage. Repeating the
// block every 6 slots, the work of one microbatch on one rank (F, I and W of two stages), gives the
// whole schedule. The longer an activation lives in the block, the more activations are live at a
// time: a lifetime of L slots costs ceil(L / 6). V-Min, V-Half and 1F1B-V are blocks with different
// lifetimes.

namespace pipewright::schedules {

// The paper (arXiv 2405.15362) bounds the bubbles of these schedules, but has no formula for a
// number of microbatches. Ours describe what the simulator finds; bubbles_box_test covers this box.
inline constexpr std::string_view kFittedBubble =
    "fitted to simulations with P <= 16 and M <= 64, not proved";

// The first slots of one microbatch's actions on rank r. No two actions may share a slot modulo 6.
// Forwards go down the V from rank 0 to P-1 and back up; backwards do the same.
struct BlockSlots {
  int forward_down;   // F of stage r
  int forward_up;     // F of stage 2P-1-r
  int backward_down;  // B or I of stage 2P-1-r
  int backward_up;    // B or I of stage r
};

// The rows of the schedule that repeats `block` (one entry per rank), without idle slots. With
// split backwards, I and W take one slot each; a whole backward takes two. The result does not
// exceed the peak of live activations that the plain repetition has on the rank, or `memory` if
// that is more. Linear in the number of actions. A pure function; any thread. The algorithm is
// described in building_block.cc.
ir::Rows repeat_block(const Shape& shape, const std::vector<BlockSlots>& block,
                      bool splits_backward, int memory = 0);

}  // namespace pipewright::schedules

#endif  // PIPEWRIGHT_SCHEDULES_BUILDING_BLOCK_H_
