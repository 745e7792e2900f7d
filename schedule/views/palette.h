#ifndef PIPEWRIGHT_SCHEDULE_VIEWS_PALETTE_H_
#define PIPEWRIGHT_SCHEDULE_VIEWS_PALETTE_H_

#include <array>
#include <span>
#include <string_view>

#include "pipewright/ir/action_kind.h"

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

}  // namespace pipewright::schedule

#endif  // PIPEWRIGHT_SCHEDULE_VIEWS_PALETTE_H_
