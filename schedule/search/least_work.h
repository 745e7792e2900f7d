#ifndef PIPEWRIGHT_SCHEDULE_SEARCH_LEAST_WORK_H_
#define PIPEWRIGHT_SCHEDULE_SEARCH_LEAST_WORK_H_

#include <cstddef>
#include <functional>
#include <limits>
#include <map>
#include <vector>

#include "pipewright/ir/placement.h"
#include "pipewright/schedule/problem/layers.h"

// How busy the busiest rank is at least, of those from some rank on, over all cuts of the layers
// that are left to them: by dynamic programming over the ends of what is left.
//
//   LeastWork least(placement, layers, work, limit);
//   std::vector<int> bounds(stages + 1, -1);  // the first layer of each stage, where it is known
//   bounds.front() = 0, bounds.back() = layers;
//   least.from(0, bounds)  of all cuts, or kNoCut
//
// Not thread-safe.

namespace pipewright::schedule::search {

class LeastWork {
 public:
  // What from() returns if every cut is above the limit.
  static constexpr double kNoCut = std::numeric_limits<double>::infinity();

  // `work` says how long these layers keep a rank busy: not negative, a sum over the layers, and in
  // the same proportions on all ranks. Cuts in which a rank is busy for more than `limit` do not
  // count.
  LeastWork(const ir::Placement& placement, int num_layers,
            std::function<double(LayerRange, int)> work, double limit);

  // For the ranks from `rank` on. The bounds of the stages of earlier ranks are known. Once it has
  // taken too long, less than that: the work that is left, shared by these ranks.
  double from(int rank, std::vector<int> bounds);

  // The work that is left to the ranks from `rank` on, if it could be divided among them at will;
  // rounded down.
  double shared(int rank, const std::vector<int>& bounds) const;
  // How long the stages of the rank whose layers are known keep it busy.
  double work_of(int rank, const std::vector<int>& bounds) const;
  // Sets an open bound of a rank's stages to each layer that the known bounds around it allow, as
  // long as the rank is busy for at most `limit`, and calls visit(). Leaves it open.
  template <typename Visit>
  void each_layer(int rank, size_t at, double limit, std::vector<int>* bounds,
                  const Visit& visit) const {
    size_t before = at, after = at;
    while ((*bounds)[before] < 0) --before;
    while ((*bounds)[after] < 0) ++after;
    const int first = (*bounds)[before], last = (*bounds)[after];
    // From where a stage of the rank is empty, if one ends or begins here.
    const bool begins = placement_.rank_of(static_cast<int>(at)) == rank && after == at + 1 &&
                        !(placement_.rank_of(static_cast<int>(at) - 1) == rank && before == at - 1);
    for (int k = 0; k <= last - first; ++k) {
      (*bounds)[at] = begins ? last - k : first + k;
      if (work_of(rank, *bounds) > limit) break;
      visit();
    }
    (*bounds)[at] = -1;
  }
  // The bounds of a rank's stages inside the pipeline, ascending.
  const std::vector<int>& bounds_of(int rank) const {
    return bounds_of_[static_cast<size_t>(rank)];
  }

 private:
  void choose(int rank, size_t k, std::vector<int>* bounds, double* least);

  const ir::Placement& placement_;
  std::function<double(LayerRange, int)> work_;
  double limit_;
  std::vector<std::vector<int>> stages_, bounds_of_;  // by rank
  std::vector<double> speed_;                         // by rank: of it and the ones after it
  std::map<std::vector<int>, double> known_;          // by rank, and the bounds that matter to it
  size_t choices_ = 0;
};

}  // namespace pipewright::schedule::search

#endif  // PIPEWRIGHT_SCHEDULE_SEARCH_LEAST_WORK_H_
