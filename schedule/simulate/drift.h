#ifndef PIPEWRIGHT_SCHEDULE_SIMULATE_DRIFT_H_
#define PIPEWRIGHT_SCHEDULE_SIMULATE_DRIFT_H_

#include <cstddef>
#include <optional>
#include <vector>

#include "pipewright/ir/schedule.h"
#include "pipewright/ir/timeline.h"

namespace pipewright::schedule {

// How far a measured run of a schedule is from a predicted one.
struct Drift {
  // The actions of one kind on one rank.
  struct Group {
    ir::ActionKind kind;
    int rank;
    int to;  // of SENDs: the receiving rank; otherwise -1
    size_t actions = 0;
    // Their mean duration. Of SENDs the shortest of those that their receivers waited for
    // (RecordedTransfer::is_known), without waits for transfers before them on the same link; if
    // there are none, the link delayed nobody, and the shortest of all is an upper bound. RECVs
    // have no group.
    double predicted = 0, measured = 0;
    bool predicted_is_bound = false, measured_is_bound = false;
  };
  std::vector<Group> groups;  // by kind, rank and receiving rank

  // The actions that differ most, at most ten, the largest difference first. Of SENDs only those
  // that their receivers waited for.
  struct Outlier {
    int rank, step;
    double predicted, measured;  // durations
  };
  std::vector<Outlier> outliers;

  // By rank: the median of measured over expected duration of its compute actions, divided by that
  // of the median rank, which so has 1.
  std::vector<double> slowness;
  // The slowest rank, if it is at least kStragglerSlowness times as slow as the median.
  std::optional<int> straggler;

  // The SENDs whose links are slow: their shortest transfer is known, takes at least kLinkSlowness
  // times as long as predicted, and so much longer that all of them together take at least
  // kLinkShare of the measured makespan longer. The largest such sum first. A link that was
  // predicted to take no time was not predicted.
  std::vector<Group> slow_links;
};

inline constexpr double kStragglerSlowness = 1.2;
inline constexpr double kLinkSlowness = 1.5;
inline constexpr double kLinkShare = 0.01;

// How long compute is expected to take, to judge the ranks by.
enum class Baseline {
  kPredicted,     // as predicted
  kEarlierRun,    // as in another recording
  kMedianOfKind,  // as the median action of its kind on all ranks; for a prediction that was made
                  // from the measured run itself, which has its stragglers too. A rank is then
                  // as slow as the least slow of its stages; if it has only one, a slow rank and a
                  // stage with more work look alike
};

// Both timelines must be of this schedule, which must be verified, and in one unit. `predicted` is
// simulated, or for Baseline::kEarlierRun recorded. A pure function; O(n log n) in the number of
// actions.
Drift drift_of(const ir::Schedule& schedule, const ir::Timeline& predicted,
               const ir::Timeline& measured, Baseline baseline);

}  // namespace pipewright::schedule

#endif  // PIPEWRIGHT_SCHEDULE_SIMULATE_DRIFT_H_
