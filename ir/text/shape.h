#ifndef PIPEWRIGHT_IR_TEXT_SHAPE_H_
#define PIPEWRIGHT_IR_TEXT_SHAPE_H_

#include <cstddef>
#include <optional>
#include <vector>

#include "pipewright/ir/diagnostic.h"
#include "pipewright/ir/schedule.h"
#include "pipewright/ir/timeline.h"

// Finds the place in a file of the cell at a given rank and step, for diagnostics. An Action has no
// room for its place, so only the start of each row is stored; a cell is found by scanning its row
// when an error needs it.

namespace pipewright::ir {

// What separates the cells of a row.
enum class CellStyle {
  kCommas,   // CSV
  kBlanks,   // .plan
  kStrings,  // JSON: strings and null
};

struct RowStart {
  size_t line;    // from 1
  size_t offset;  // of the first byte of that line
  size_t cells;   // offset of the row's first cell, or of the blanks before it
};

class CellIndex {
 public:
  // For a schedule that was not read from a file: places have a rank and step only.
  CellIndex() = default;
  // `source` must outlive the index.
  CellIndex(const Source& source, CellStyle style) : source_(&source), style_(style) {}

  // Adds the row of the next rank.
  void add_row(const RowStart& start) { rows_.push_back(start); }

  // The place of a cell. Linear in the length of its row; queries in ascending order cost the
  // length of the row in total, because the last cell is cached. Therefore not thread-safe. Errors
  // with notes elsewhere use Diagnostics::find_places, which asks in ascending order.
  Place place(int rank, int step) const;
  // The start of a rank's row.
  Place row_place(int rank) const;

 private:
  const Source* source_ = nullptr;
  CellStyle style_ = CellStyle::kCommas;
  std::vector<RowStart> rows_;

  // The last cell that was found; the next scan starts there.
  struct Last {
    int rank;
    int step;
    size_t begin;
    PlaceCursor cursor;
  };
  mutable std::optional<Last> last_;
};

// The shape of a schedule read from a file: its number of ranks, stages and microbatches, and its
// placement. For a CSV the shape is inferred from the rows (find_shape); a .plan or JSON file
// declares it, and the rows are checked against it (check_declared_shape). All functions are linear
// in the number of actions.

// The shape that the caller expects; unset fields are not checked.
struct ExpectedShape {
  std::optional<int> ranks = {};
  std::optional<int> stages = {};
  std::optional<int> microbatches = {};
  std::optional<int> slices = {};
  std::optional<int> replicas = {};
};

struct FoundShape {
  Placement placement;
  int num_microbatches = 0;
};

// Infers the shape from the rows: a stage is on the rank that has its actions, and the numbers of
// stages and microbatches are one more than the highest in use. With two replicas, replica 0 runs
// the first half of the microbatches. Returns nullopt and adds errors for a stage of a replica that
// is on two ranks or on none, a rank that holds one stage twice or has no actions, a microbatch
// that lacks slices, and an odd number of microbatches with two replicas.
std::optional<FoundShape> find_shape(const Rows& rows, int slices, int replicas,
                                     const CellIndex& cells, Diagnostics* diagnostics);

// Joins the maps of two replicas, the first of which runs the first half of the microbatches.
// Returns nullopt and adds an error at `place` if the number of microbatches is odd or a stage is
// on the same rank in both. `num_microbatches` counts slices.
std::optional<Placement> join_replicas(const Placement& first, const Placement& second,
                                       int num_microbatches, int slices, const Place& place,
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

// The result of every parser: a schedule, the places of its cells in the Source, which must outlive
// this, and a recording if the file has one.
struct ParsedSchedule {
  AnySchedule schedule;
  CellIndex cells = {};
  std::optional<Recording> recording = {};
};

}  // namespace pipewright::ir

#endif  // PIPEWRIGHT_IR_TEXT_SHAPE_H_
