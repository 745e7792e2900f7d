#ifndef PIPEWRIGHT_SCHEDULE_GRAPH_STAGE_KINDS_H_
#define PIPEWRIGHT_SCHEDULE_GRAPH_STAGE_KINDS_H_

#include <bit>
#include <cstddef>
#include <iterator>

#include "pipewright/ir/action.h"

namespace pipewright::schedule {

// Tables with an entry per stage and kind of action, such as what each RECV_F of stage 3 receives,
// whatever the microbatch:
//
//   std::vector<End> ends(num_stages * kKindsPerStage);
//   ends[stage_kind(part)] = ...;
//
// A power of 2, because walks along rows look up each action.
inline constexpr size_t kKindsPerStage = std::bit_ceil(std::size(ir::kActionKinds) + 1);

inline size_t stage_kind(ir::ActionPart part) {
  return static_cast<size_t>(part.stage()) * kKindsPerStage + static_cast<size_t>(part.kind());
}

}  // namespace pipewright::schedule

#endif  // PIPEWRIGHT_SCHEDULE_GRAPH_STAGE_KINDS_H_
