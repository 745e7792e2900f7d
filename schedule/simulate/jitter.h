#ifndef PIPEWRIGHT_SCHEDULE_SIMULATE_JITTER_H_
#define PIPEWRIGHT_SCHEDULE_SIMULATE_JITTER_H_

#include <cstdint>

#include "pipewright/ir/schedule.h"
#include "pipewright/schedule/simulate/costs.h"
#include "pipewright/schedule/simulate/event_graph.h"

namespace pipewright::schedule {

// How the makespan spreads when no action takes quite what it should.
struct Spread {
  int runs = 0;
  double least = 0, median = 0, mean = 0, deviation = 0, percentile_95 = 0, most = 0;
};

// Simulates `runs` times, from 1 on, with each action's time multiplied by a factor of its own:
// log-normal with mean 1, whose logarithm deviates by `sigma`. The same seed gives the same
// factors. Linear in runs times actions.
Spread spread_of_makespan(const EventGraph& graph, const ir::Schedule& schedule, const Costs& costs,
                          double sigma, int runs, uint64_t seed);

}  // namespace pipewright::schedule

#endif  // PIPEWRIGHT_SCHEDULE_SIMULATE_JITTER_H_
