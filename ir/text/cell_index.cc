#include "pipewright/ir/text/cell_index.h"

#include <string_view>

namespace pipewright::ir {
namespace {

struct Cell {
  size_t begin;
  size_t end;
};

bool is_blank(char letter) { return letter == ' ' || letter == '\t' || letter == '\r'; }

// The text between two commas, without the blanks around it.
Cell find_csv_cell(std::string_view text, size_t at, int step) {
  for (; step > 0 && at < text.size() && text[at] != '\n'; ++at) {
    if (text[at] == ',') --step;
  }
  Cell cell{at, at};
  while (cell.end < text.size() && text[cell.end] != ',' && text[cell.end] != '\n') ++cell.end;
  while (cell.begin < cell.end && is_blank(text[cell.begin])) ++cell.begin;
  while (cell.end > cell.begin && is_blank(text[cell.end - 1])) --cell.end;
  return cell;
}

// A word between two runs of blanks.
Cell find_plan_cell(std::string_view text, size_t at, int step) {
  Cell cell{at, at};
  for (; step >= 0; --step) {
    cell.begin = cell.end;
    while (cell.begin < text.size() && is_blank(text[cell.begin])) ++cell.begin;
    cell.end = cell.begin;
    while (cell.end < text.size() && !is_blank(text[cell.end]) && text[cell.end] != '\n')
      ++cell.end;
  }
  return cell;
}

// A string or literal of the array that contains `at`.
Cell find_json_cell(std::string_view text, size_t at, int step) {
  Cell cell{at, at};
  for (; step >= 0; --step) {
    cell.begin = cell.end;
    while (cell.begin < text.size() && text[cell.begin] != '"' &&
           (text[cell.begin] < 'a' || text[cell.begin] > 'z')) {
      ++cell.begin;
    }
    cell.end = cell.begin;
    if (cell.end == text.size()) break;
    const bool is_string = text[cell.end++] == '"';
    while (cell.end < text.size()) {
      const char letter = text[cell.end];
      if (is_string ? letter == '"' : letter < 'a' || letter > 'z') break;
      cell.end += letter == '\\' ? 2 : 1;
    }
    if (is_string) ++cell.end;
  }
  return cell;
}

Cell find_cell(CellStyle style, std::string_view text, size_t at, int step) {
  switch (style) {
    case CellStyle::kCommas:
      return find_csv_cell(text, at, step);
    case CellStyle::kBlanks:
      return find_plan_cell(text, at, step);
    case CellStyle::kStrings:
      return find_json_cell(text, at, step);
  }
  return {at, at};
}

}  // namespace

Place CellIndex::place(int rank, int step) const {
  Place place;
  if (source_ != nullptr && static_cast<size_t>(rank) < rows_.size()) {
    if (!last_ || last_->rank != rank || last_->step > step) {
      const RowStart& row = rows_[static_cast<size_t>(rank)];
      last_.emplace(Last{rank, 0, row.cells, PlaceCursor(*source_)});
      last_->cursor.start_line(row.line, row.offset);
    }
    const Cell cell = find_cell(style_, source_->text, last_->begin, step - last_->step);
    last_->step = step;
    last_->begin = cell.begin;
    place = last_->cursor.at(cell.begin, cell.end - cell.begin);
  }
  place.rank = rank;
  place.step = step;
  return place;
}

Place CellIndex::row_place(int rank) const {
  Place place;
  if (source_ != nullptr && static_cast<size_t>(rank) < rows_.size()) {
    const RowStart& row = rows_[static_cast<size_t>(rank)];
    PlaceCursor cursor(*source_);
    cursor.start_line(row.line, row.offset);
    place = cursor.at(row.offset, 0);
  }
  place.rank = rank;
  return place;
}

}  // namespace pipewright::ir
