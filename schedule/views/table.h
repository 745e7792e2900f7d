#ifndef PIPEWRIGHT_SCHEDULE_VIEWS_TABLE_H_
#define PIPEWRIGHT_SCHEDULE_VIEWS_TABLE_H_

#include <cstddef>
#include <iosfwd>

#include "pipewright/ir/schedule.h"

namespace pipewright::schedule {

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
