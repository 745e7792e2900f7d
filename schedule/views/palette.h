#ifndef PIPEWRIGHT_SCHEDULE_VIEWS_PALETTE_H_
#define PIPEWRIGHT_SCHEDULE_VIEWS_PALETTE_H_

#include <array>
#include <span>
#include <string_view>

#include "pipewright/ir/action_kind.h"

namespace pipewright::schedule {

// How views show one kind of action, or several that look the same.
struct Paint {
  std::string_view legend;  // "F forward"
  std::string_view ansi;  // parameters of an ANSI colour sequence; "" for the terminal's own colour
  // Fills of figures and graphs, light enough for black text: three shades for the stages of a rank
  // in turn. Where stages are not told apart, the first.
  std::array<std::string_view, 3> shades;
};

// All rows of the palette, in the order of a legend.
std::span<const Paint> palette();

// The row of a kind. An idle slot has a row too, which colours nothing.
const Paint& paint_of(ir::ActionKind kind);

}  // namespace pipewright::schedule

#endif  // PIPEWRIGHT_SCHEDULE_VIEWS_PALETTE_H_
