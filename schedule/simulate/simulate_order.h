#ifndef PIPEWRIGHT_SCHEDULE_SIMULATE_SIMULATE_ORDER_H_
#define PIPEWRIGHT_SCHEDULE_SIMULATE_SIMULATE_ORDER_H_

#include <optional>
#include <span>

#include "pipewright/ir/schedule.h"
#include "pipewright/ir/timeline.h"
#include "pipewright/schedule/problem/costs.h"

namespace pipewright::schedule {

// What simulate() computes from a ChannelGraph, to the last bit, by one walk along the rows of a
// compute order: a compute starts when the one before it on its rank has ended and its input has
// arrived. Each action must be in the row of its stage's rank, once. nullopt if the order cannot
// run to its end, or has 2^32 actions or more.
std::optional<ir::Timeline> simulate_order(const ir::ComputeOrder& order, const CostTable& table,
                                           std::span<const double> stretch = {});

}  // namespace pipewright::schedule

#endif  // PIPEWRIGHT_SCHEDULE_SIMULATE_SIMULATE_ORDER_H_
