#include "pipewright/schedule/search/least_work.h"

#include <algorithm>
#include <set>
#include <utility>

namespace pipewright::schedule::search {
namespace {

constexpr size_t kMostTries = 1'000'000;  // about a second

}  // namespace

LeastWork::LeastWork(const ir::Placement& placement, int num_layers,
                     std::function<double(LayerRange, int)> work, double limit)
    : placement_(placement), work_(std::move(work)), limit_(limit) {
  // In whole models per unit of time.
  speed_.assign(static_cast<size_t>(placement.num_ranks()) + 1, 0);
  for (int rank = placement.num_ranks(); rank-- > 0;) {
    const double whole = work_({0, num_layers}, rank);
    speed_[static_cast<size_t>(rank)] =
        speed_[static_cast<size_t>(rank) + 1] + (whole > 0 ? 1 / whole : kNoCut);
  }
  for (int rank = 0; rank < placement.num_ranks(); ++rank) {
    stages_.push_back(placement.stages_of(rank));
    std::set<int> inside;
    for (const int stage : stages_.back()) {
      for (const int bound : {stage, stage + 1}) {
        if (bound > 0 && bound < placement.num_stages()) inside.insert(bound);
      }
    }
    bounds_of_.emplace_back(inside.begin(), inside.end());
  }
}

double LeastWork::work_of(int rank, const std::vector<int>& bounds) const {
  double work = 0;
  for (const int stage : stages_[static_cast<size_t>(rank)]) {
    const auto at = static_cast<size_t>(stage);
    if (bounds[at] >= 0 && bounds[at + 1] >= 0) work += work_({bounds[at], bounds[at + 1]}, rank);
  }
  return work;
}

double LeastWork::from(int rank, std::vector<int> bounds) {
  if (rank == placement_.num_ranks()) return 0;
  // Bounds between stages of earlier ranks do not matter any more.
  const auto comes = [&](int stage) {
    return stage >= 0 && stage < placement_.num_stages() && placement_.rank_of(stage) >= rank;
  };
  for (int bound = 0; bound <= placement_.num_stages(); ++bound) {
    if (!comes(bound - 1) && !comes(bound)) bounds[static_cast<size_t>(bound)] = -1;
  }
  std::vector<int> key = bounds;
  key.push_back(rank);
  if (const auto found = known_.find(key); found != known_.end()) return found->second;
  const double share = shared(rank, bounds);
  if (choices_ >= kMostTries) return share;
  double least = kNoCut;
  if (share <= limit_) choose(rank, 0, &bounds, &least);
  if (choices_ >= kMostTries) return share;  // some choices are missing
  known_.emplace(std::move(key), least);
  return least;
}

double LeastWork::shared(int rank, const std::vector<int>& bounds) const {
  const auto comes = [&](int stage) {
    return stage < placement_.num_stages() && placement_.rank_of(stage) >= rank;
  };
  double models = 0;
  for (int stage = 0; stage < placement_.num_stages(); ++stage) {
    if (!comes(stage)) continue;
    const int first = stage;
    while (comes(stage)) ++stage;
    models += work_({bounds[static_cast<size_t>(first)], bounds[static_cast<size_t>(stage)]}, 0);
  }
  const double whole = 1 / (speed_[0] - speed_[1]);
  const double speed = speed_[static_cast<size_t>(rank)];
  return whole > 0 && speed < kNoCut ? models / whole / speed * (1 - 1e-9) : 0;
}

// Tries all layers for the bounds of the rank from the k-th on, as far as they are open.
void LeastWork::choose(int rank, size_t k, std::vector<int>* bounds, double* least) {
  if (++choices_ >= kMostTries) return;
  if (k == bounds_of(rank).size()) {
    const double own = work_of(rank, *bounds);
    if (own < *least && own <= limit_)
      *least = std::min(*least, std::max(own, from(rank + 1, *bounds)));
    return;
  }
  const auto at = static_cast<size_t>(bounds_of(rank)[k]);
  if ((*bounds)[at] >= 0) return choose(rank, k + 1, bounds, least);
  each_layer(rank, at, limit_, bounds, [&] { choose(rank, k + 1, bounds, least); });
}

}  // namespace pipewright::schedule::search
