#ifndef PIPEWRIGHT_SCHEDULE_VIEWS_DIFF_H_
#define PIPEWRIGHT_SCHEDULE_VIEWS_DIFF_H_

#include <vector>

#include "pipewright/ir/schedule.h"

namespace pipewright::schedule {

// What makes one row of another. An action that stands several times is told apart by its number.
struct RowChange {
  std::vector<ir::Action> removed, added;  // in the order of their row
  std::vector<ir::Action> moved;  // in both, the fewest without which the rest keeps its order

  bool empty() const { return removed.empty() && added.empty() && moved.empty(); }
};

// Idle slots do not count: they change nothing of what runs.
RowChange change_of(const ir::Row& before, const ir::Row& after);

// By rank; where one schedule has fewer, its rows are empty. O(n log n).
std::vector<RowChange> changes_of(const ir::Rows& before, const ir::Rows& after);

}  // namespace pipewright::schedule

#endif  // PIPEWRIGHT_SCHEDULE_VIEWS_DIFF_H_
