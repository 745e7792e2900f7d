#ifndef PIPEWRIGHT_SCHEDULE_SIMULATE_WALKS_H_
#define PIPEWRIGHT_SCHEDULE_SIMULATE_WALKS_H_

#include <optional>
#include <span>

#include "pipewright/ir/channel.h"
#include "pipewright/ir/schedule.h"
#include "pipewright/ir/timeline.h"
#include "pipewright/schedule/problem/costs.h"

// What simulate() computes from a ChannelGraph, to the last bit, by one walk along the rows
// (ir/walk.h), in half the time. nullopt if a walk cannot tell: 2^30 actions or more, or a schedule
// that cannot run to its end.

namespace pipewright::schedule {

// For a compute order: a compute starts when the one before it on its rank has ended and its input
// has arrived. Each action must be in the row of its stage's rank, once.
std::optional<ir::Timeline> simulate_order(const ir::ComputeOrder& order, const CostTable& table,
                                           std::span<const double> stretch = {});

// For a program whose queues are one per peer and direction (ir::ChannelModel::kEdge); see
// edge_transfers.h. nullopt also for a finite capacity above 0, and for a SEND and a RECV that do
// not meet.
std::optional<ir::Timeline> simulate_on_edges(const ir::Program& program,
                                              ir::ChannelCapacity capacity, const CostTable& table,
                                              std::span<const double> stretch = {});

}  // namespace pipewright::schedule

#endif  // PIPEWRIGHT_SCHEDULE_SIMULATE_WALKS_H_
