#ifndef PIPEWRIGHT_TESTS_SCHEDULE_SIMULATED_H_
#define PIPEWRIGHT_TESTS_SCHEDULE_SIMULATED_H_

#include <random>
#include <string_view>
#include <vector>

#include "pipewright/ir/schedule.h"
#include "pipewright/schedule/compile/compile.h"
#include "pipewright/schedule/graph/channel_graph.h"
#include "pipewright/schedule/lowering/lower.h"
#include "pipewright/schedule/problem/costs.h"
#include "pipewright/schedule/simulate/report.h"
#include "pipewright/schedule/simulate/simulate.h"
#include "pipewright/schedules/registry.h"

// Schedules and costs for the tests of the simulator and its reports.

namespace pipewright::schedule {

// A schedule of the catalogue, simulated as a compute order.
inline Report report_of(std::string_view name, const schedules::Shape& shape, const Costs& costs,
                        const schedules::PlanTimes& times = {}) {
  const ir::ComputeOrder order =
      schedules::make_order(*schedules::find_schedule(name), shape, times);
  return report_on(order, costs, simulate(ChannelGraph::of_order(order), order, costs));
}

// Costs per rank, divided evenly among its stages.
inline Costs costs_of(double forward, double input, double weight, double comm, int per_rank = 1) {
  Costs costs;
  costs.forward = forward / per_rank;
  costs.backward_input = input / per_rank;
  costs.backward_weight = weight / per_rank;
  costs.link.latency = comm;
  return costs;
}

inline CompileResult compiled(const ir::ComputeOrder& order) {
  return compile({.source = ir::AnySchedule(order), .level = ir::Level::kComputeOnly});
}

// Moves up to three actions to other places of their rows, which may break the order.
inline void move_actions(std::mt19937* random, ir::ComputeOrder* order) {
  const auto below = [&](size_t limit) { return static_cast<size_t>((*random)() % limit); };
  for (size_t changes = below(4); changes > 0; --changes) {
    ir::Row& row = order->rows[below(order->rows.size())];
    const size_t from = below(row.size()), to = below(row.size());
    const ir::Action moved = row[from];
    row.erase(row.begin() + static_cast<std::ptrdiff_t>(from));
    row.insert(row.begin() + static_cast<std::ptrdiff_t>(to), moved);
  }
}

// A schedule of either level with its channel graph.
struct Simulated {
  ir::AnySchedule any;
  ChannelGraph graph;

  const ir::Schedule& schedule() const { return ir::schedule_of(any); }
};

// Every schedule at a small shape, as an order and as a program under each channel model.
inline std::vector<Simulated> all_simulated(int ranks, int microbatches) {
  std::vector<Simulated> all;
  for (const schedules::ScheduleSpec* spec : schedules::all_schedules()) {
    // No odd number of ranks holds two replicas.
    const bool has_replicas = spec->pattern == schedules::Pattern::kBothWays;
    const int used = has_replicas ? ranks - ranks % 2 : ranks;
    const ir::ComputeOrder order =
        schedules::make_order(*spec, {used, schedules::default_stages(*spec, used), microbatches});
    all.push_back({order, ChannelGraph::of_order(order)});
    ir::Diagnostics diagnostics;
    const ir::Program program = *lower(order, {}, &diagnostics);
    for (const ir::ChannelModelInfo& model : ir::channel_models()) {
      for (const ir::ChannelCapacity capacity : {0u, 1u, ir::kUnboundedCapacity})
        all.push_back({program, ChannelGraph::of_program(program, model.model, capacity)});
    }
  }
  return all;
}

// Costs that are not multiples of each other, with one slow rank and one long microbatch.
inline Costs uneven_costs(const ir::Placement& placement, int num_microbatches) {
  Costs costs = costs_of(3, 2.5, 1.75, 0.375);
  costs.unshard = 0.5;
  costs.reduce_grad = 0.75;
  costs.microbatch_scale.assign(static_cast<size_t>(num_microbatches), 1);
  costs.microbatch_scale[1] = 1.5;
  costs.links[{0, 1}] = {1.25, 100};
  costs.output_bytes = 25;
  slow_rank(placement.num_ranks() - 1, 1.25, placement, &costs);
  return costs;
}

}  // namespace pipewright::schedule

#endif  // PIPEWRIGHT_TESTS_SCHEDULE_SIMULATED_H_
