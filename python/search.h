#ifndef PIPEWRIGHT_PYTHON_SEARCH_H_
#define PIPEWRIGHT_PYTHON_SEARCH_H_

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "pipewright/python/schedule.h"
#include "pipewright/schedule/search/search.h"

namespace pipewright::python {

// A memory limit: one for all ranks, or one per rank; empty for none.
std::optional<schedule::PerRank> per_rank(const std::vector<double>& limits);

struct SearchArguments {
  int ranks = 0, microbatches = 0;
  std::string placement;  // "loop", "v", "wave", "free"
  int stages = 0;         // 0: as many as the placement needs at least
  schedule::Costs costs;
  std::vector<double> memory, memory_bytes;  // one for all ranks, or one per rank; empty for none
  int64_t evaluations = 0;
  double robust = 0;
  schedule::search::RobustBy robust_by = schedule::search::RobustBy::kMean;
  bool merge_backward = false;
  bool layers = false;                      // cut the layers of the costs too
  bool recompute = false, offload = false;  // choose the stages that do
  int slices = 1;                           // that each microbatch is cut into
  int replicas = 1;                         // of the model, in opposite directions
  int threads = 1;
  uint64_t seed = 1;
};

struct SearchOutcome {
  Schedule schedule;
  double cost, makespan, bubble_rate, bound, gap;
  std::string bound_name, found_by;
  int64_t evaluations;
  std::string placement;  // "loop", "v", "wave"
  int stages;
  std::vector<double> memory;  // the limit, in activations or bytes: as in SearchArguments
  std::optional<schedule::search::Robustness> robustness;  // if SearchArguments::robust is set
  // Of a search with "free": one for each placement and part of the memory, as in search_front().
  std::vector<SearchOutcome> front = {};
  bool is_best = true;  // of the front: no other needs no more memory and costs less
};

// Runs the search on a thread of its own and calls `interrupted` some times a second: once that
// returns true, the search stops. Throws ScheduleFailure or std::invalid_argument for what does not
// fit, and whatever `interrupted` throws.
SearchOutcome search(const SearchArguments& arguments, const std::function<bool()>& interrupted);

}  // namespace pipewright::python

#endif  // PIPEWRIGHT_PYTHON_SEARCH_H_
