#ifndef PIPEWRIGHT_SCHEDULE_SEARCH_CUTS_H_
#define PIPEWRIGHT_SCHEDULE_SEARCH_CUTS_H_

#include <optional>
#include <vector>

#include "pipewright/schedule/problem/layers.h"
#include "pipewright/schedule/search/front.h"
#include "pipewright/schedule/search/search.h"

// The search for a cut of a model's layers and a compute order together.
//
//   SearchRequest request = {.placement = ir::Placement::v(8, 16), .num_microbatches = 24,
//                            .costs = costs, .memory = {.bytes = 8e10}};   // costs with layers
//   if (const auto found = search_cuts(request)) {
//     found->cut  {2, 3, 3, ...}, which found->result.order names too
//
// The result is never worse than what search_schedule() finds with the same budget for the even cut
// and for the cut of the least maximum (layers.h), where they fit, so never worse than a schedule
// of the catalogue on either. Its bound holds for every cut (cut_bound.h). Takes up to four times
// the budget; about once that where the bounds of these two cuts are above the cost of what is
// found. As search_schedule() otherwise.

namespace pipewright::schedule::search {

struct CutResult {
  Cut cut;
  SearchResult result;
};

// nullopt if no cut that was tried fits the memory: the two above, and what comes of moving layers
// from stages of ranks with too little memory. The costs must have layers, at least one per stage.
std::optional<CutResult> search_cuts(const SearchRequest& request);

// search_cuts() for those front_searches() that the layers are enough for, with a share of the
// budget each. Without those for which no cut was found that fits.
std::vector<FrontPoint> search_cut_front(const SearchRequest& request,
                                         const std::vector<PlacementOption>& options);

// The request for one cut: with the costs of its stages.
SearchRequest with_cut(const SearchRequest& request, const Cut& cut);

}  // namespace pipewright::schedule::search

#endif  // PIPEWRIGHT_SCHEDULE_SEARCH_CUTS_H_
