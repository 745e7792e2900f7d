#ifndef PIPEWRIGHT_SCHEDULE_SIMULATE_SIMULATE_H_
#define PIPEWRIGHT_SCHEDULE_SIMULATE_SIMULATE_H_

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "pipewright/ir/schedule.h"
#include "pipewright/ir/timeline.h"
#include "pipewright/schedule/simulate/costs.h"
#include "pipewright/schedule/simulate/event_graph.h"

// The simulator computes when each action runs, without a GPU. Every action runs as soon as it can,
// so the times follow from the event graph and the costs alone. Pure functions; linear in the
// number of actions. The costs must fit the schedule (check_costs).

namespace pipewright::schedule {

// The transfer delay on an edge: how long a result takes from rank to rank. Only edges of compute
// orders have one; in programs transfers are actions.
double transfer_of(const Dependency& dependency, const CostTable& table);

// When each action runs. `stretch` multiplies the durations of single actions: one factor per cell,
// along the rows; empty for none.
ir::Timeline simulate(const EventGraph& graph, const ir::Schedule& schedule, const Costs& costs,
                      std::span<const double> stretch = {});

// The same for a single simulation, without an event graph, in less than half of the time and
// memory. Returns nullopt if the schedule cannot run to its end.
std::optional<ir::Timeline> simulate(const ir::ComputeOrder& order, const Costs& costs);
std::optional<ir::Timeline> simulate(const ir::Program& program, ir::ChannelModel channels,
                                     ir::ChannelCapacity capacity, const Costs& costs);

// The slack of each action: how much later it could end without delaying the end of the schedule.
// One value per cell, along the rows; 0 for idle slots. `timeline` must be the result of
// simulate() for this graph.
std::vector<double> slack_of(const EventGraph& graph, const ir::Schedule& schedule,
                             const Costs& costs, const ir::Timeline& timeline);

struct CriticalStep {
  int rank;
  int step;
  double transfer;  // the transfer delay just before its start; see transfer_of()
};
// A critical path, first to last: a chain of dependent actions without slack, from the start of the
// schedule to its end. Any action on it that takes longer delays the end.
std::vector<CriticalStep> critical_path(const EventGraph& graph, const ir::Schedule& schedule,
                                        const Costs& costs, const ir::Timeline& timeline);

}  // namespace pipewright::schedule

#endif  // PIPEWRIGHT_SCHEDULE_SIMULATE_SIMULATE_H_
