#ifndef PIPEWRIGHT_SCHEDULE_VIEWS_DIFF_H_
#define PIPEWRIGHT_SCHEDULE_VIEWS_DIFF_H_

#include <vector>

#include "pipewright/ir/schedule.h"

namespace pipewright::schedule {

// The difference between two rows. An action that appears several times is matched by occurrence:
// the k-th with the k-th.
struct RowChange {
  std::vector<ir::Action> removed, added;  // in the order of their row
  // In both rows, but in another order: a smallest set whose removal leaves equal rows.
  std::vector<ir::Action> moved;

  bool empty() const { return removed.empty() && added.empty() && moved.empty(); }
};

// Compares two rows. Idle slots are ignored: they do not change what runs. O(n log n).
RowChange change_of(const ir::Row& before, const ir::Row& after);

// Compares rows by rank. The missing rows of the schedule with fewer ranks count as empty.
std::vector<RowChange> changes_of(const ir::Rows& before, const ir::Rows& after);

}  // namespace pipewright::schedule

#endif  // PIPEWRIGHT_SCHEDULE_VIEWS_DIFF_H_
