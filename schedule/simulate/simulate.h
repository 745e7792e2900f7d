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

// The simulator: how long a schedule takes, before there is a GPU. Everything runs as soon as it
// can, so that times follow from the graph and the costs alone. Pure functions; linear in the
// number of actions. Costs must fit the schedule (costs_error).

namespace pipewright::schedule {

// How long what an action waits for is on the way to it: of an order, whose transfers are no
// actions.
double transfer_of(const Before& before, const CostTable& table);

// When each action runs. `stretch` makes single actions longer: a factor for each, along the rows;
// empty for none.
ir::Timeline simulate(const EventGraph& graph, const ir::Schedule& schedule, const Costs& costs,
                      std::span<const double> stretch = {});

// The same without a graph, for one run: in less than half of the time and memory. None if the
// schedule cannot be run to its end.
std::optional<ir::Timeline> simulate(const ir::ComputeOrder& order, const Costs& costs);
std::optional<ir::Timeline> simulate(const ir::Program& program, ir::ChannelModel channels,
                                     ir::ChannelCapacity capacity, const Costs& costs);

// How much later each action could end without the whole becoming longer; along the rows, idle
// slots 0. The timeline must be the graph's own.
std::vector<double> slack_of(const EventGraph& graph, const ir::Schedule& schedule,
                             const Costs& costs, const ir::Timeline& timeline);

struct CriticalStep {
  int rank;
  int step;
  // Time before its start in which its input was on the way: of an order, whose transfers are no
  // actions.
  double transfer;
};
// Actions each of which starts as the one before it lets it, from the start to the end of the
// whole: none can be longer without the whole being so too. First to last.
std::vector<CriticalStep> critical_path(const EventGraph& graph, const ir::Schedule& schedule,
                                        const Costs& costs, const ir::Timeline& timeline);

}  // namespace pipewright::schedule

#endif  // PIPEWRIGHT_SCHEDULE_SIMULATE_SIMULATE_H_
