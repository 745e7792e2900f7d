#include "pipewright/schedule/plan/plan.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>

#include "pipewright/ir/placement.h"
#include "pipewright/schedule/problem/problem.h"
#include "pipewright/schedule/search/cut_bound.h"
#include "pipewright/schedule/simulate/report.h"
#include "pipewright/schedule/simulate/simulate.h"
#include "pipewright/schedules/registry.h"

namespace pipewright::schedule {
namespace {

constexpr int64_t kMostActions = 500'000;

// One per division that the numbers allow, without its figures.
std::vector<PlanRow> divisions(const PlanRequest& request) {
  std::vector<PlanRow> rows;
  for (int tp = 1; tp <= std::min(request.gpus, request.machine.gpus_per_node); tp *= 2) {
    if (request.gpus % tp != 0 || request.model.heads % tp != 0) continue;
    for (int pp = 1; pp <= std::min(request.gpus / tp, request.model.layers); ++pp) {
      if (request.gpus / tp % pp != 0) continue;
      PlanRow row;
      row.pp = pp;
      row.training = request.training;
      row.training.tp = tp;
      row.training.dp = request.gpus / tp / pp;
      if (request.model.experts > 0)
        row.training.ep = static_cast<int>(
            std::gcd(static_cast<int64_t>(row.training.dp), request.model.experts));
      for (const int64_t size : request.microbatch_sizes) {
        const int64_t together = size * row.training.dp;
        if (request.batch % together != 0 || request.batch / together > (1 << 20)) continue;
        row.training.microbatch_size = size;
        row.microbatches = static_cast<int>(request.batch / together);
        for (const int stages : {1, 2}) {
          if (stages > 1 && (pp == 1 || pp * stages > request.model.layers + 2)) continue;
          if (int64_t{2} * pp * stages * row.microbatches > kMostActions) continue;
          row.stages_per_rank = stages;
          for (const bool recomputes : {false, true}) {
            row.training.recomputes = recomputes;
            rows.push_back(row);
          }
        }
      }
    }
  }
  return rows;
}

// What a rank's stages exchange with data-parallel ranks in a step: gradients, and parameters if
// they, or the optimizer's state, are sharded.
double exchange_of(const Costs& stages, const TrainingShape& training,
                   const std::vector<int>& own) {
  double time = 0;
  for (const int stage : own) {
    const double reduce = stages.reduce_grad.at(stage);
    time += reduce;
    if (training.shard == Shard::kNone) {
      time += reduce;  // an all-reduce is two of these
    } else {
      time += reduce * training.value_bytes / training.gradient_bytes;
    }
  }
  return time;
}

// Sets the figures; false if the row does not fit, or its schedule does not exist.
bool evaluate(const PlanRequest& request, PlanRow* row) {
  const schedules::ScheduleSpec& spec =
      *schedules::find_schedule(row->stages_per_rank == 1 ? "1F1B" : "Interleaved1F1B");
  const schedules::Shape shape = {.ranks = row->pp,
                                  .stages = row->pp * row->stages_per_rank,
                                  .microbatches = row->microbatches};
  if (schedules::shape_error(spec, shape)) return false;
  const ir::Placement placement = schedules::placement_of(spec, shape);
  row->costs = model_costs(request.model, row->training, request.machine,
                           request.gpus <= request.machine.gpus_per_node);
  // What is held throughout does not depend on the schedule: a quick no.
  double model = 0;
  for (const LayerRun& run : row->costs.layers)
    model += run.count * (run[&Costs::parameter_bytes] + run[&Costs::gradient_bytes] +
                          run[&Costs::optimizer_bytes] + run[&Costs::shard_bytes]);
  if (model / row->pp > kUsableMemory * request.machine.memory) return false;
  row->order = schedules::make_order(spec, shape);
  for (const Cut& cut : {least_maximum_cut(row->costs, placement),
                         even_cut(num_layers(row->costs), placement.num_stages())}) {
    const Costs stages = offloading(cut_layers(row->costs, cut), {}, placement.num_stages());
    const Report report = report_on(row->order, stages, simulate(row->order, stages));
    double memory = 0, busiest = 0, exchange = 0, exposed = 0;
    for (int rank = 0; rank < row->pp; ++rank) {
      const RankReport& one = report.ranks[static_cast<size_t>(rank)];
      const std::vector<int> own = placement.stages_of(rank);
      // A received tensor per stage and direction beside what an order counts.
      double receive = 0;
      for (const int stage : own)
        receive += row->pp == 1
                       ? 0
                       : stages.output_bytes.at(stage) + stages.input_gradient_bytes.at(stage);
      memory = std::max(memory, one.peak_bytes.amount + receive);
      busiest = std::max(busiest, one.busy);
      exposed = std::max(exposed, one.exposed_communication);
      exchange = std::max(exchange, exchange_of(stages, row->training, own));
    }
    if (memory > kUsableMemory * request.machine.memory) continue;
    row->cut = row->order.cut = cut;
    row->memory = memory;
    row->step = report.makespan + exchange;
    row->exposed = exposed + exchange;
    row->bubble = (row->step - busiest) / row->step;
    return true;
  }
  return false;
}

}  // namespace

std::vector<PlanRow> plan_rows(const PlanRequest& request) {
  std::vector<PlanRow> candidates = divisions(request), rows;
  const auto total = static_cast<int>(candidates.size());
  for (int k = 0; k < total && !is_cancelled(request.cancel); ++k) {
    if (request.on_progress) request.on_progress(k, total);
    PlanRow& row = candidates[static_cast<size_t>(k)];
    if (evaluate(request, &row)) rows.push_back(std::move(row));
  }
  std::ranges::stable_sort(rows, {}, &PlanRow::step);
  return rows;
}

double plan_bound(const PlanRow& row, const Machine& machine) {
  search::SearchRequest request;
  request.placement = row.order.placement;
  request.num_microbatches = row.microbatches;
  request.costs = row.costs;
  request.memory.bytes = kUsableMemory * machine.memory;
  return search::cut_bound(request, row.step).value;
}

}  // namespace pipewright::schedule
