#ifndef PIPEWRIGHT_IR_TEXT_SHAPE_H_
#define PIPEWRIGHT_IR_TEXT_SHAPE_H_

#include <optional>

#include "pipewright/ir/diagnostic.h"
#include "pipewright/ir/schedule.h"
#include "pipewright/ir/text/cell_index.h"

// The shape of a schedule read from a file: its number of ranks, stages and microbatches, and its
// placement. For a CSV the shape is inferred from the rows (find_shape); a .plan or JSON file
// declares it, and the rows are checked against it (check_declared_shape). All functions are linear
// in the number of actions.

namespace pipewright::ir {

// The shape that the caller expects; unset fields are not checked.
struct ExpectedShape {
  std::optional<int> ranks;
  std::optional<int> stages;
  std::optional<int> microbatches;
};

struct FoundShape {
  Placement placement;
  int num_microbatches = 0;
};

// Infers the shape from the rows: a stage is on the rank that has its actions, and the numbers of
// stages and microbatches are one more than the highest in use. Returns nullopt and adds errors if
// a stage is on two ranks or on none, or if a rank has no actions.
std::optional<FoundShape> find_shape(const Rows& rows, const CellIndex& cells,
                                     Diagnostics* diagnostics);

// Checks the rows against the level, ranks, stages, microbatches and placement that the schedule
// declares. Adds an error for each action that violates them, and for a wrong number of rows at the
// place `header`. Returns whether there was no error.
bool check_declared_shape(const Schedule& schedule, Level level, const CellIndex& cells,
                          const Place& header, Diagnostics* diagnostics);

// Checks the shape of a schedule against the expected one. Adds an error for each number that
// differs. Returns whether there was no error.
bool check_expected_shape(const Schedule& schedule, const ExpectedShape& expected,
                          Diagnostics* diagnostics);

// Checks that a lowered program has no idle slots. Adds an error for each. Returns whether there
// was no error.
bool check_no_idle(const Rows& rows, const CellIndex& cells, Diagnostics* diagnostics);

}  // namespace pipewright::ir

#endif  // PIPEWRIGHT_IR_TEXT_SHAPE_H_
