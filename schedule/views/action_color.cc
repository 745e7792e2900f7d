#include "pipewright/schedule/views/action_color.h"

namespace pipewright::schedule {

std::string_view action_color(ir::ActionKind kind) {
  switch (kind) {
    case ir::ActionKind::kForward:
      return "34";
    case ir::ActionKind::kBackward:
      return "32";
    case ir::ActionKind::kBackwardInput:
      return "36";
    case ir::ActionKind::kBackwardWeight:
      return "33";
    case ir::ActionKind::kOverlapFB:
      return "35";
    case ir::ActionKind::kSendF:
    case ir::ActionKind::kRecvF:
    case ir::ActionKind::kSendB:
    case ir::ActionKind::kRecvB:
      return "2";
    case ir::ActionKind::kUnshard:
    case ir::ActionKind::kReshard:
    case ir::ActionKind::kReduceGrad:
    case ir::ActionKind::kIdle:
      return "";
  }
  return "";
}

}  // namespace pipewright::schedule
