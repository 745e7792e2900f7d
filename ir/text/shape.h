#ifndef PIPEWRIGHT_IR_TEXT_SHAPE_H_
#define PIPEWRIGHT_IR_TEXT_SHAPE_H_

#include <optional>

#include "pipewright/ir/diagnostic.h"
#include "pipewright/ir/schedule.h"
#include "pipewright/ir/text/cell_index.h"

// The shape of a schedule: ranks, stages, microbatches, and which rank holds which stage. A CSV's
// shape is found from its rows; a .plan and a JSON file declare theirs. Every pass is linear in the
// number of actions.

namespace pipewright::ir {

// What a schedule should be, as far as it is said.
struct ExpectedShape {
  std::optional<int> ranks;
  std::optional<int> stages;
  std::optional<int> microbatches;
};

struct FoundShape {
  Placement placement;
  int num_microbatches = 0;
};

// The shape that the rows have: a stage lies on the rank that has its actions, and the numbers of
// stages and microbatches are one more than the highest in use. None, with errors, where a stage is
// on two ranks or on none, or a rank has no actions.
std::optional<FoundShape> find_shape(const Rows& rows, const CellIndex& cells,
                                     Diagnostics* diagnostics);

// Whether the rows keep to what the schedule declares: its level, ranks, stages, microbatches and
// placement. Adds an error for each action that does not; `header` is the place for a wrong number
// of rows.
bool check_declared_shape(const Schedule& schedule, Level level, const CellIndex& cells,
                          const Place& header, Diagnostics* diagnostics);

// Whether a schedule has the shape that was asked for; adds an error for each number that differs.
bool check_expected_shape(const Schedule& schedule, const ExpectedShape& expected,
                          Diagnostics* diagnostics);

// A lowered program has no idle slots: adds an error for each.
bool check_no_idle(const Rows& rows, const CellIndex& cells, Diagnostics* diagnostics);

}  // namespace pipewright::ir

#endif  // PIPEWRIGHT_IR_TEXT_SHAPE_H_
