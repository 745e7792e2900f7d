#ifndef PIPEWRIGHT_SCHEDULE_SEARCH_COMPOUND_DISPATCHER_H_
#define PIPEWRIGHT_SCHEDULE_SEARCH_COMPOUND_DISPATCHER_H_

#include <vector>

#include "pipewright/schedule/problem/problem.h"
#include "pipewright/schedule/search/compound_rows.h"

namespace pipewright::schedule::search {

// Schedules that are made for compounds: rank by rank, as time passes, each runs an F and an I at
// once where both can start soon, an I or F alone where only one can, and a W where neither. One
// schedule for each of some settings of the rules; those that get stuck are left out. Memory is
// checked for each part of a compound, not for both together, so some may not fit. For starts of
// find_compounds(). Takes time in the order of kDispatcherRules times actions times stages.
inline constexpr int kDispatcherRules = 24;
std::vector<CompoundRows> dispatched_compounds(const Problem& problem);

}  // namespace pipewright::schedule::search

#endif  // PIPEWRIGHT_SCHEDULE_SEARCH_COMPOUND_DISPATCHER_H_
