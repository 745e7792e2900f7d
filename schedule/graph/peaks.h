#ifndef PIPEWRIGHT_SCHEDULE_GRAPH_PEAKS_H_
#define PIPEWRIGHT_SCHEDULE_GRAPH_PEAKS_H_

#include <optional>
#include <vector>

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

#endif  // PIPEWRIGHT_SCHEDULE_GRAPH_PEAKS_H_
