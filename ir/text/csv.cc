// Reads a CSV in one pass. Almost every cell is a plain action (`take_plain_action`); only the
// others take the slow path through parse_action, which handles blanks, compounds, idle cells and
// errors. Rows are allocated once, at their final size. Linear in the size of the text.

#include "pipewright/ir/text/csv.h"

#include <algorithm>
#include <ostream>
#include <string>
#include <string_view>
#include <utility>

#include "pipewright/ir/text/action_text.h"
#include "pipewright/ir/text/shape.h"

namespace pipewright::ir {
namespace {

// Parses one row into `row`, which has the right number of cells. Returns whether the row contains
// an action that only a lowered program can have.
bool parse_row(std::string_view text, size_t begin, size_t end, PlaceCursor& cursor, Row* row,
               Diagnostics* diagnostics) {
  bool lowered = false;
  size_t at = begin;
  const std::string_view until_end = text.substr(0, end);
  for (Action& action : *row) {
    const size_t cell = at;
    at = take_plain_action(until_end, cell, &action);
    if (at >= end ? at != end : text[at] != ',') {
      // Not a plain action: parse the whole cell.
      action = Action();
      at = std::min(until_end.find(',', cell), end);
      if (auto error = parse_action(text.substr(cell, at - cell), &action)) {
        report(std::move(*error), cursor.at(cell + error->offset, error->length), diagnostics);
      }
    }
    lowered |= !action.is_idle() && !is_compute(action.kind());
    ++at;
  }
  return lowered;
}

}  // namespace

std::optional<ParsedSchedule> parse_csv(const Source& source, Diagnostics* diagnostics,
                                        const ExpectedShape& expected) {
  const std::string_view text = source.text;
  const size_t errors_before = diagnostics->total();
  ParsedSchedule parsed;
  parsed.cells = CellIndex(source, CellStyle::kCommas);
  PlaceCursor cursor(source);
  Rows rows;
  rows.reserve(static_cast<size_t>(std::ranges::count(text, '\n')) + 1);
  bool lowered = false;
  size_t line = 1;
  // Blank lines at the end are no rows.
  const size_t last = text.find_last_not_of(" \t\r\n");
  const size_t rows_end = last == std::string_view::npos ? 0 : last + 1;
  for (size_t begin = source.mark_size(); begin < rows_end; ++line) {
    const size_t newline = std::min(text.find('\n', begin), text.size());
    const size_t end = newline > begin && text[newline - 1] == '\r' ? newline - 1 : newline;
    cursor.start_line(line, begin);
    parsed.cells.add_row({line, begin, begin});
    Row& row = rows.emplace_back();
    if (end > begin) {
      // Counting the cells first lets the row be allocated at its exact size.
      row.resize(static_cast<size_t>(std::ranges::count(text.substr(begin, end - begin), ',')) + 1);
      lowered |= parse_row(text, begin, end, cursor, &row, diagnostics);
    }
    begin = newline + 1;
  }
  if (diagnostics->total() > errors_before) return std::nullopt;

  const bool complete = !lowered || check_no_idle(rows, parsed.cells, diagnostics);
  const int slices = expected.slices.value_or(1);
  std::optional<FoundShape> shape =
      find_shape(rows, slices, expected.replicas.value_or(1), parsed.cells, diagnostics);
  if (!shape || !complete) return std::nullopt;
  Schedule schedule{.name = "",
                    .placement = std::move(shape->placement),
                    .num_microbatches = shape->num_microbatches,
                    .lowering = {},
                    .slices = slices,
                    .rows = std::move(rows)};
  parsed.schedule =
      make_schedule(lowered ? Level::kComputeComms : Level::kComputeOnly, std::move(schedule));
  return parsed;
}

void print_csv(const Rows& rows, std::ostream& out) {
  constexpr size_t kChunk = 1 << 16;
  std::string text;
  text.reserve(2 * kChunk);
  for (const Row& row : rows) {
    bool first = true;
    for (const Action& action : row) {
      if (!std::exchange(first, false)) text.push_back(',');
      append_action(action, &text);
      if (text.size() >= kChunk) {
        out << text;
        text.clear();
      }
    }
    text.append("\r\n");
  }
  out << text;
}

}  // namespace pipewright::ir
