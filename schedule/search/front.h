#ifndef PIPEWRIGHT_SCHEDULE_SEARCH_FRONT_H_
#define PIPEWRIGHT_SCHEDULE_SEARCH_FRONT_H_

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "pipewright/ir/placement.h"
#include "pipewright/schedule/problem/costs.h"
#include "pipewright/schedule/search/search.h"

// The placements that a search takes by name, on the command line and in Python:
//
//   loop   stage s on rank s mod P; at least P stages
//   v      back and forth over the ranks; a multiple of P stages, at least 2P
//   wave   a v that goes back and forth at least twice; a multiple of 2P stages, at least 4P
//
// Pure functions; any thread. Those that take a name throw std::invalid_argument for another one.

namespace pipewright::schedule::search {

// The default number of stages per rank: 1 for loop, 2 for v, 4 for wave.
int default_stages_per_rank(std::string_view name);

// Throws std::invalid_argument if the placement does not exist for this number of stages.
ir::Placement named_placement(std::string_view name, int ranks, int stages);

// Two replicas of the model in opposite directions (ir::Placement::both_ways), each of which runs
// one half of the microbatches. Throws std::invalid_argument unless ranks and microbatches are
// even.
ir::Placement both_ways(const ir::Placement& placement, int num_microbatches, int slices);

// What each placement makes of each amount of memory: the search over several placements.

// The costs of a model of `stages` stages after each of them is cut into `parts` equal stages.
// Activations, parameters and times of a stage are divided; what passes between stages, and
// so a checkpoint, is not.
Costs cut_stages(const Costs& costs, int stages, int parts);

// A placement to try, for a model of S stages that may be cut further.
struct PlacementOption {
  std::string name;         // "loop", "v", "wave"
  ir::Placement placement;  // of parts * S stages
  int parts = 1;            // how many stages each given stage is cut into
};

// One search: a placement with a part of the memory.
struct FrontPoint {
  PlacementOption option;
  MemoryBudget memory;
  SearchResult result;
  bool is_best = false;  // no other point needs no more memory and costs less
};

// The searches of a front: every option with 8/8, 7/8, ..., 2/8 of the memory of `request`, or once
// without a limit. By memory, largest first, then in the order of the options. Placement and memory
// are set; costs and budget are those of `request`.
std::vector<std::pair<FrontPoint, SearchRequest>> front_searches(
    const SearchRequest& request, const std::vector<PlacementOption>& options);

// Sets is_best of each point.
void mark_best(std::vector<FrontPoint>* points);

// loop and v with up to two stages per rank, and wave (a v that goes back and forth twice), as far
// as they are multiples of `stages` and of `ranks`.
std::vector<PlacementOption> placement_options(int ranks, int stages);

// Runs the front_searches() that fit, which share the budget; the costs are those of `stages`
// stages. Stops early, with the points so far, once the request is cancelled.
std::vector<FrontPoint> search_front(const SearchRequest& request, int stages,
                                     const std::vector<PlacementOption>& options);

}  // namespace pipewright::schedule::search

#endif  // PIPEWRIGHT_SCHEDULE_SEARCH_FRONT_H_
