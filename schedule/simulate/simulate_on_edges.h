#ifndef PIPEWRIGHT_SCHEDULE_SIMULATE_SIMULATE_ON_EDGES_H_
#define PIPEWRIGHT_SCHEDULE_SIMULATE_SIMULATE_ON_EDGES_H_

#include <optional>
#include <span>

#include "pipewright/ir/channel.h"
#include "pipewright/ir/schedule.h"
#include "pipewright/ir/timeline.h"
#include "pipewright/schedule/problem/costs.h"

namespace pipewright::schedule {

// What simulate() computes from a ChannelGraph, to the last bit, by one walk along the rows of a
// program whose queues are one per peer and direction (ir::ChannelModel::kEdge); see
// edge_transfers.h. nullopt if that cannot tell: a finite capacity above 0, 2^30 actions or more,
// a program that cannot run to its end, or a SEND and a RECV that do not meet.
std::optional<ir::Timeline> simulate_on_edges(const ir::Program& program,
                                              ir::ChannelCapacity capacity, const CostTable& table,
                                              std::span<const double> stretch = {});

}  // namespace pipewright::schedule

#endif  // PIPEWRIGHT_SCHEDULE_SIMULATE_SIMULATE_ON_EDGES_H_
