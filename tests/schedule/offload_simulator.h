#ifndef PIPEWRIGHT_TESTS_SCHEDULE_OFFLOAD_SIMULATOR_H_
#define PIPEWRIGHT_TESTS_SCHEDULE_OFFLOAD_SIMULATOR_H_

#include <cstddef>
#include <vector>

#include "pipewright/ir/schedule.h"
#include "pipewright/schedule/problem/costs.h"

// A simulator of compute orders whose stages offload activations, which shares nothing with the one
// in schedule/simulate. It goes from event to event: what has ended is freed, copies are posted to
// the queue of their rank, and whatever can start does. Slow, and without rank_scale,
// microbatch_scale and links of their own.

namespace pipewright::tests {

// An activation that goes to the host after one step of a row and is back before another.
struct Trip {
  int stage;
  size_t forward, backward;
  size_t place;  // the copy back is posted before this step, after `forward` and up to `backward`
};

// The trips of a row in the order of their backwards. The copies back are posted just before them.
std::vector<Trip> trips_of(const ir::Row& row, const schedule::Costs& costs);

// What happens to an order.
struct OffloadRun {
  double cost = 0, makespan = 0;
  std::vector<std::vector<double>> starts;  // by rank and step
  std::vector<double> peaks;                // by rank: activations in bytes
};

// With these trips, by rank. The order may not have idle slots. Infinite cost for a deadlock.
OffloadRun run_of(const ir::ComputeOrder& order, const schedule::Costs& costs,
                  const std::vector<std::vector<Trip>>& trips);
// With trips whose places follow the rule of schedule/simulate/memory_model.h.
OffloadRun run_of(const ir::ComputeOrder& order, const schedule::Costs& costs);

}  // namespace pipewright::tests

#endif  // PIPEWRIGHT_TESTS_SCHEDULE_OFFLOAD_SIMULATOR_H_
