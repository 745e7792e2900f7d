#ifndef PIPEWRIGHT_SCHEDULE_SIMULATE_JITTER_H_
#define PIPEWRIGHT_SCHEDULE_SIMULATE_JITTER_H_

#include <atomic>
#include <cstdint>

#include "pipewright/ir/schedule.h"
#include "pipewright/schedule/graph/channel_graph.h"
#include "pipewright/schedule/problem/costs.h"

namespace pipewright::schedule {

// The distribution of the makespan when the durations of actions vary at random.
struct Spread {
  int runs = 0;
  double least = 0, median = 0, mean = 0, deviation = 0, percentile_95 = 0, most = 0;
};

// Simulates the schedule `runs` times (at least 1), with the duration of each action multiplied by
// its own log-normal factor: mean 1, standard deviation of the logarithm `sigma`. The same seed
// yields the same factors on every platform. Linear in runs times actions. Ends after the current
// run once `cancel` is set, which may be null.
Spread spread_of_makespan(const ChannelGraph& graph, const ir::Schedule& schedule,
                          const Costs& costs, double sigma, int runs, uint64_t seed,
                          const std::atomic<bool>* cancel = nullptr);

}  // namespace pipewright::schedule

#endif  // PIPEWRIGHT_SCHEDULE_SIMULATE_JITTER_H_
