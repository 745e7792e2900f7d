#ifndef PIPEWRIGHT_SCHEDULE_SEARCH_NAMED_PLACEMENT_H_
#define PIPEWRIGHT_SCHEDULE_SEARCH_NAMED_PLACEMENT_H_

#include <string_view>

#include "pipewright/ir/placement.h"

// The placements that a search takes by name, on the command line and in Python:
//
//   loop   stage s on rank s mod P; at least P stages
//   v      back and forth over the ranks; a multiple of P stages, at least 2P
//   wave   a v that goes back and forth at least twice; a multiple of 2P stages, at least 4P
//
// Pure functions; any thread. Both throw std::invalid_argument for another name.

namespace pipewright::schedule::search {

// The default number of stages per rank: 1 for loop, 2 for v, 4 for wave.
int default_stages_per_rank(std::string_view name);

// Throws std::invalid_argument if the placement does not exist for this number of stages.
ir::Placement named_placement(std::string_view name, int ranks, int stages);

}  // namespace pipewright::schedule::search

#endif  // PIPEWRIGHT_SCHEDULE_SEARCH_NAMED_PLACEMENT_H_
