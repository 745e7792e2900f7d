#ifndef PIPEWRIGHT_IR_WALK_H_
#define PIPEWRIGHT_IR_WALK_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "pipewright/ir/action.h"
#include "pipewright/ir/placement.h"
#include "pipewright/ir/schedule.h"

namespace pipewright::ir {

// A walk along all rows of a schedule at once: each rank passes its actions in order until it has
// to wait for another rank, and goes on after that rank has woken it.
//
//   Walk walk(schedule.rows);
//   const bool ran_to_the_end = walk.run([&](size_t rank, const Action& action, uint32_t number) {
//     if (!has_inputs(action)) return false;  // the rank waits here
//     made(action);
//     walk.wake(user_of(action));  // in case it waits for this action
//     return true;
//   });
//
// `number` counts the actions and idle slots along the rows, as ChannelGraph does. Linear in the
// number of actions if each wakes a bounded number of ranks. The rows must outlive the walk. For
// one thread.
class Walk {
 public:
  explicit Walk(const Rows& rows) : rows_(rows), waits_(rows.size(), false) {
    uint32_t number = 0;
    for (size_t rank = 0; rank < rows.size(); ++rank) {
      places_.push_back({0, number});
      awake_.push_back(rank);
      number += static_cast<uint32_t>(rows[rank].size());
    }
  }

  // Has no effect on a rank that does not wait.
  void wake(size_t rank) {
    if (!waits_[rank]) return;
    waits_[rank] = false;
    awake_.push_back(rank);
  }

  // Calls pass(rank, action, number) for each action, and again for one at which the rank waited
  // and was woken. Returns whether all ranks reached their ends.
  template <typename Pass>
  bool run(const Pass& pass) {
    size_t at_end = 0;
    std::vector<size_t> round;
    while (!awake_.empty()) {
      round.clear();
      round.swap(awake_);
      for (const size_t rank : round) {
        Place place = places_[rank];
        const Row& row = rows_[rank];
        while (place.step < row.size() && pass(rank, row[place.step], place.number)) {
          ++place.step;
          ++place.number;
        }
        if (place.step == row.size()) {
          ++at_end;
        } else {
          places_[rank] = place;
          waits_[rank] = true;
        }
      }
    }
    return at_end == rows_.size();
  }

 private:
  struct Place {
    size_t step;
    uint32_t number;  // of the action at `step`
  };

  const Rows& rows_;
  std::vector<Place> places_;   // by rank
  std::vector<size_t> awake_;   // ranks, in the order in which they go on
  std::vector<uint8_t> waits_;  // by rank
};

// What a walk looks up for each action is kept by instance of a stage (placement.h). With one
// replica that is the stage, and asking for it must cost nothing; with two, rank and stage name it.
struct StagesOfRows {
  int on(size_t /*rank*/, ActionPart part) const { return part.stage(); }
};
struct InstancesOfRows {
  const Placement& placement;
  int on(size_t rank, ActionPart part) const {
    return placement.instance_on(static_cast<int>(rank), part.stage());
  }
};

// Calls function(instances) with one of the two.
template <typename Function>
auto with_instances(const Placement& placement, const Function& function) {
  return placement.num_replicas() == 1 ? function(StagesOfRows())
                                       : function(InstancesOfRows{placement});
}

}  // namespace pipewright::ir

#endif  // PIPEWRIGHT_IR_WALK_H_
