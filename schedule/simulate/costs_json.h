#ifndef PIPEWRIGHT_SCHEDULE_SIMULATE_COSTS_JSON_H_
#define PIPEWRIGHT_SCHEDULE_SIMULATE_COSTS_JSON_H_

#include <string>
#include <string_view>
#include <variant>

#include "pipewright/schedule/simulate/costs.h"

namespace pipewright::schedule {

// A costs file, as COSTS.md describes it. What is not in it keeps the value that Costs has. The
// error is one line that names the key, what was found and what was wanted.
std::variant<Costs, std::string> parse_costs(std::string_view text);

}  // namespace pipewright::schedule

#endif  // PIPEWRIGHT_SCHEDULE_SIMULATE_COSTS_JSON_H_
