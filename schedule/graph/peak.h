#ifndef PIPEWRIGHT_SCHEDULE_GRAPH_PEAK_H_
#define PIPEWRIGHT_SCHEDULE_GRAPH_PEAK_H_

#include <optional>

#include "pipewright/ir/schedule.h"

namespace pipewright::schedule {

// The largest amount of something along a rank's row, and the first step that reaches it.
template <typename Amount>
struct Peak {
  Amount amount = 0;
  std::optional<int> step;  // not set if the amount is never above 0

  // Takes the amount at the next step into account.
  void add(Amount amount_at_step, int at_step) {
    if (amount_at_step <= amount) return;
    amount = amount_at_step;
    step = at_step;
  }

  friend bool operator==(const Peak&, const Peak&) = default;
};

// The peak number of live activations along a row, each of one microbatch of one stage. F creates
// an activation, B or W frees it; in a schedule without a backward, F itself frees it at its end.
// In a compound, F counts before B. Linear in the number of actions.
Peak<int> peak_activations(const ir::Row& row, bool has_backward);

}  // namespace pipewright::schedule

#endif  // PIPEWRIGHT_SCHEDULE_GRAPH_PEAK_H_
