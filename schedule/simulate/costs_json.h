#ifndef PIPEWRIGHT_SCHEDULE_SIMULATE_COSTS_JSON_H_
#define PIPEWRIGHT_SCHEDULE_SIMULATE_COSTS_JSON_H_

#include <optional>

#include "pipewright/ir/diagnostic.h"
#include "pipewright/ir/source.h"
#include "pipewright/schedule/simulate/costs.h"

namespace pipewright::schedule {

// Costs, and where they are in the file that they were read from.
struct ParsedCosts {
  Costs costs;
  CostPlaces places;
};

// Reads a costs file, as COSTS.md describes it. A key that is left out keeps its value in Costs.
// None, with every error that there is, if anything is wrong.
std::optional<ParsedCosts> parse_costs(const ir::Source& source, ir::Diagnostics* diagnostics);

}  // namespace pipewright::schedule

#endif  // PIPEWRIGHT_SCHEDULE_SIMULATE_COSTS_JSON_H_
