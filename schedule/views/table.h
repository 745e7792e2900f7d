#ifndef PIPEWRIGHT_SCHEDULE_VIEWS_TABLE_H_
#define PIPEWRIGHT_SCHEDULE_VIEWS_TABLE_H_

#include <array>
#include <cstddef>
#include <iosfwd>
#include <span>
#include <string>
#include <string_view>

#include "pipewright/ir/action_kind.h"
#include "pipewright/ir/schedule.h"

namespace pipewright::schedule {

// The legend and colours of one kind of action, or of several kinds that look the same.
struct Paint {
  std::string_view legend;  // "F forward"
  std::string_view ansi;  // parameters of an ANSI colour sequence; "" for the terminal's own colour
  // Fill colours of figures and graphs, light enough for black text. The stages of a rank take the
  // three shades in turn; views that do not distinguish stages use the first.
  std::array<std::string_view, 3> shades;
};

// All rows of the palette, in the order of a legend.
std::span<const Paint> palette();

// The row of a kind. kIdle has a row without colours.
const Paint& paint_of(ir::ActionKind kind);

// The microbatch of an action as pictures show it: "3", or "1.1" for slice 1 of microbatch 1.
std::string microbatch_text(int microbatch, int slices);

struct TableOptions {
  size_t width = 0;    // characters per line; 0 for no limit
  bool color = false;  // ANSI colours by kind of action
};

// Prints a schedule in the format of PyTorch's _format_pipeline_order: one line per step, one
// column per rank.
//
//           Rank 0 Rank 1
//   Step 0: 0F0
//   Step 1: 0F1    1F0
//   Step 2:        1B0
//
// Ranks that do not fit the width continue in further tables below, with at least one rank each.
// Linear in steps times ranks.
void print_table(const ir::Schedule& schedule, const TableOptions& options, std::ostream& out);

}  // namespace pipewright::schedule

#endif  // PIPEWRIGHT_SCHEDULE_VIEWS_TABLE_H_
