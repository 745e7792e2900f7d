#ifndef PIPEWRIGHT_SCHEDULE_VIEWS_TABLE_H_
#define PIPEWRIGHT_SCHEDULE_VIEWS_TABLE_H_

#include <cstddef>
#include <iosfwd>

#include "pipewright/ir/schedule.h"

namespace pipewright::schedule {

struct TableOptions {
  size_t width = 0;    // columns of a line; 0 for no limit
  bool color = false;  // ANSI colours by kind of action
};

// A schedule as PyTorch's _format_pipeline_order shows it, a line a step and a column a rank:
//
//           Rank 0 Rank 1
//   Step 0: 0F0
//   Step 1: 0F1    1F0
//   Step 2:        1B0
//
// Ranks that do not fit the width stand in a second table below the first, and so on; at least one
// a table. Linear in steps times ranks.
void print_table(const ir::Schedule& schedule, const TableOptions& options, std::ostream& out);

}  // namespace pipewright::schedule

#endif  // PIPEWRIGHT_SCHEDULE_VIEWS_TABLE_H_
