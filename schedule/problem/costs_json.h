#ifndef PIPEWRIGHT_SCHEDULE_PROBLEM_COSTS_JSON_H_
#define PIPEWRIGHT_SCHEDULE_PROBLEM_COSTS_JSON_H_

#include <iosfwd>
#include <optional>

#include "pipewright/ir/diagnostic.h"
#include "pipewright/schedule/problem/costs.h"

namespace pipewright::schedule {

// Costs, with their places in the file that they were read from.
struct ParsedCosts {
  Costs costs;
  CostPlaces places;
};

// Reads a costs file (COSTS.md). A missing key has the default of its field in Costs. Returns
// nullopt and adds all errors if the file is not valid.
std::optional<ParsedCosts> parse_costs(const ir::Source& source, ir::Diagnostics* diagnostics);

// Writes a costs file that parse_costs() reads as equal costs, which must be valid (check_costs).
// Keys with default values are left out.
void print_costs(const Costs& costs, std::ostream& out);

}  // namespace pipewright::schedule

#endif  // PIPEWRIGHT_SCHEDULE_PROBLEM_COSTS_JSON_H_
