#ifndef PIPEWRIGHT_SCHEDULE_SEARCH_CUT_BOUND_H_
#define PIPEWRIGHT_SCHEDULE_SEARCH_CUT_BOUND_H_

#include <optional>
#include <string>

#include "pipewright/schedule/problem/layers.h"
#include "pipewright/schedule/search/search.h"

// A lower bound on the cost of every schedule of a model, however its layers are cut into stages.
//
//   const CutBound bound = cut_bound(request, best.cost);
//   bound.value  2133     no cut, order or choice of stages that recompute costs less
//
// docs/bounds.md ("Cuts") proves it. Pure; any thread.

namespace pipewright::schedule::search {

struct CutBound {
  double value = 0;       // in the unit of the costs
  std::string name = {};  // of the bound of the rank that decides, see bounds.h
  int rank = -1;          // that rank; -1 if the limit decides
  // A cut whose ranks all have this bound; nullopt if the bounds of all cuts are above the limit,
  // or the search for the least one was given up.
  std::optional<Cut> cut = {};
};

// For request.costs, which must have layers, request.placement, microbatches and memory. Cuts whose
// bound is above `limit`, the cost of a schedule that is known, are not told apart: the bound is at
// most that.
CutBound cut_bound(const SearchRequest& request, double limit);

}  // namespace pipewright::schedule::search

#endif  // PIPEWRIGHT_SCHEDULE_SEARCH_CUT_BOUND_H_
