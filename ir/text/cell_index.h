#ifndef PIPEWRIGHT_IR_TEXT_CELL_INDEX_H_
#define PIPEWRIGHT_IR_TEXT_CELL_INDEX_H_

#include <cstddef>
#include <optional>
#include <vector>

#include "pipewright/ir/source.h"

// Where the cells of a schedule stand in the file that it was read from. Actions have no room for
// places, so only the start of each row is kept, and a cell is found by walking along its row when
// an error has to name it.

namespace pipewright::ir {

// What divides the cells of a row.
enum class CellStyle {
  kCommas,   // CSV
  kBlanks,   // .plan
  kStrings,  // JSON: "0F0", null
};

struct RowStart {
  size_t line;    // from 1
  size_t offset;  // of the first byte of that line
  size_t cells;   // offset of the row's first cell, or of the blanks before it
};

class CellIndex {
 public:
  // Of a schedule that comes from no file: places name rank and step alone.
  CellIndex() = default;
  // `source` must outlive the index.
  CellIndex(const Source& source, CellStyle style) : source_(&source), style_(style) {}

  // The start of the next rank's row.
  void add_row(const RowStart& start) { rows_.push_back(start); }

  // The place of a cell. Linear in the length of its row, but asked for cells in their order, all
  // of a row's together cost no more than its length: the last one is remembered, so not for two
  // threads at once.
  Place place(int rank, int step) const;
  // The place where a rank's row starts.
  Place row_place(int rank) const;

 private:
  const Source* source_ = nullptr;
  CellStyle style_ = CellStyle::kCommas;
  std::vector<RowStart> rows_;

  // The cell that was asked for last: the next one is looked for from there.
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
