#ifndef PIPEWRIGHT_IR_TEXT_PLAN_H_
#define PIPEWRIGHT_IR_TEXT_PLAN_H_

#include <iosfwd>
#include <optional>
#include <string_view>

#include "pipewright/ir/diagnostic.h"
#include "pipewright/ir/schedule.h"
#include "pipewright/ir/text/shape.h"

// The .plan, pipewright's own text format: the rows of a CSV, with a header that states the shape,
// name, placement and lowering of the schedule.
//
//   pipewright plan 1
//   name: GPipe
//   level: compute_only
//   ranks: 2
//   stages: 2
//   microbatches: 2
//   placement: loop
//
//   rank 0: 0F0 0F1 . . 0B0 0B1
//   rank 1: . 1F0 1F1 1B0 1B1
//
// The grammar is in FORMAT.md.

namespace pipewright::ir {

// Parses the whole text. Returns nullopt and adds all errors if it is not valid.
std::optional<ParsedSchedule> parse_plan(const Source& source, Diagnostics* diagnostics);

// Writes a .plan. parse_plan reads back the same schedule.
void print_plan(const AnySchedule& schedule, std::ostream& out);

// Whether a text starts like a .plan.
bool looks_like_plan(std::string_view text);

}  // namespace pipewright::ir

#endif  // PIPEWRIGHT_IR_TEXT_PLAN_H_
