#ifndef PIPEWRIGHT_SCHEDULE_SIMULATE_SIMULATE_H_
#define PIPEWRIGHT_SCHEDULE_SIMULATE_SIMULATE_H_

#include <atomic>
#include <cstdint>
#include <span>
#include <vector>

#include "pipewright/ir/schedule.h"
#include "pipewright/ir/timeline.h"
#include "pipewright/schedule/graph/channel_graph.h"
#include "pipewright/schedule/problem/costs.h"

// The simulator computes when each action runs, without a GPU. Every action runs as soon as it can,
// so the times follow from the channel graph and the costs alone. A SEND takes its transfer's time
// and occupies its queue, and that of its RECV, while it lasts. Pure functions; linear in the
// number of actions. A backward of a stage that offloads also waits for its copy back
// (memory_model.h). The costs must fit the schedule (check_costs).

namespace pipewright::schedule {

// The transfer delay on an edge: how long a result takes from rank to rank. Only edges of compute
// orders have one; in programs transfers are actions. `action` is the one that waits.
double transfer_of(const Dependency& dependency, const ir::Action& action, const CostTable& table);

// How long before what an edge is from has ended, and after its transfer has arrived, the action
// that waits can start: an I or B that recomputes, before its gradient arrives. 0 for other edges.
// `before` is the action that it waits for, and `rank` the one that runs it.
double lead_of(const Dependency& dependency, const ir::Action& before, const ir::Action& action,
               size_t rank, const CostTable& table);

// When each action runs. `stretch` multiplies the durations of single actions: one factor per cell,
// along the rows; empty for none. Actions that cannot run, because the schedule deadlocks, have the
// interval 0 to 0.
ir::Timeline simulate(const ChannelGraph& graph, const ir::Schedule& schedule, const Costs& costs,
                      std::span<const double> stretch = {});

// Simulates a compute order. Its actions must be in the rows of their stages' ranks, each
// once, as the verifier checks. If it runs to its end, it builds no graph, and takes a third of
// the time.
ir::Timeline simulate(const ir::ComputeOrder& order, const Costs& costs,
                      std::span<const double> stretch = {});

// Simulates a program under a channel model and capacity. With ChannelModel::kEdge it builds no
// graph and is twice as fast.
ir::Timeline simulate(const ir::Program& program, ir::ChannelModel channels,
                      ir::ChannelCapacity capacity, const Costs& costs,
                      std::span<const double> stretch = {});

// The slack of each action: how much later it could end without delaying the end of the schedule.
// One value per cell, along the rows; 0 for idle slots, and exactly 0 for critical actions (see
// ir::kTimeTolerance). `timeline` must be the result of simulate() for this graph, which must run
// to its end.
std::vector<double> slack_of(const ChannelGraph& graph, const ir::Schedule& schedule,
                             const Costs& costs, const ir::Timeline& timeline);

struct CriticalStep {
  int rank;
  int step;
  double transfer;  // the transfer delay just before its start; see transfer_of()
  double copies;    // how long it waited for copies of its rank just before its start
};
// A critical path, first to last: a chain of dependent actions without slack, from the start of the
// schedule to its end. Any action on it that takes longer delays the end.
std::vector<CriticalStep> critical_path(const ChannelGraph& graph, const ir::Schedule& schedule,
                                        const Costs& costs, const ir::Timeline& timeline);

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

#endif  // PIPEWRIGHT_SCHEDULE_SIMULATE_SIMULATE_H_
