#ifndef PIPEWRIGHT_IR_TEXT_CELL_INDEX_H_
#define PIPEWRIGHT_IR_TEXT_CELL_INDEX_H_

#include <cstddef>
#include <optional>
#include <vector>

#include "pipewright/ir/source.h"

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

}  // namespace pipewright::ir

#endif  // PIPEWRIGHT_IR_TEXT_CELL_INDEX_H_
