#include "pipewright/schedule/graph/peak.h"

namespace pipewright::schedule {

Peak<int> peak_activations(const ir::Row& row, bool has_backward) {
  Peak<int> peak;
  int live = 0;
  for (size_t step = 0; step < row.size(); ++step) {
    int freed = 0;
    for (const ir::ActionPart part : row[step].parts()) {
      const bool is_forward = part.kind() == ir::ActionKind::kForward;
      if (is_forward) peak.add(++live, static_cast<int>(step));
      freed += ir::completes_backward(part.kind()) || (is_forward && !has_backward);
    }
    live -= freed;  // at the end of the whole action
  }
  return peak;
}

}  // namespace pipewright::schedule
