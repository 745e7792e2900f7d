#ifndef PIPEWRIGHT_SCHEDULE_PLAN_PLAN_H_
#define PIPEWRIGHT_SCHEDULE_PLAN_PLAN_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "pipewright/ir/schedule.h"
#include "pipewright/schedule/model/machine.h"
#include "pipewright/schedule/model/model_costs.h"
#include "pipewright/schedule/problem/costs.h"
#include "pipewright/schedule/problem/layers.h"

// How to divide the training of a model over so many GPUs: pipeline, tensor and data parallelism,
// stages per rank, microbatch size, recomputation. Each division is costed (model_costs.h), cut by
// the least maximum of work, scheduled by 1F1B or Interleaved1F1B and simulated; those that fit the
// memory are rows, fastest first.
//
//   const std::vector<PlanRow> rows = plan_rows({.model = model, .training = {.sequence = 8192},
//                                                .machine = *find_gpu("h100"), .gpus = 64,
//                                                .batch = 512});
//   rows.front().step  12345 ms, which is a prediction
//
// Pure; any thread.

namespace pipewright::schedule {

struct PlanRequest {
  ModelShape model;
  TrainingShape training;  // microbatch_size, tp, dp, ep and recomputes are chosen
  Machine machine;
  int gpus = 0;
  int64_t batch = 0;  // sequences per step
  std::vector<int64_t> microbatch_sizes = {1, 2, 4, 8};
  // Called now and then with the numbers of divisions that are done and that there are.
  std::function<void(int, int)> on_progress = {};
  const std::atomic<bool>* cancel = nullptr;  // may be null
};

// The part of a GPU's memory that a row may use: the rest is for the context, communication and
// fragmentation.
inline constexpr double kUsableMemory = 0.94;

struct PlanRow {
  int pp = 1, stages_per_rank = 1, microbatches = 1;
  TrainingShape training;
  Costs costs;  // with layers
  Cut cut;
  ir::ComputeOrder order;
  // In ms. The step is the makespan and what data-parallel ranks exchange, which is counted in
  // full; exposed is the communication in it that no compute hides.
  double step = 0, exposed = 0;
  double bubble = 0;  // (step - work of the busiest rank) / step
  double memory = 0;  // bytes of the fullest rank
};

// Those that fit, fastest first. Empty if none does.
std::vector<PlanRow> plan_rows(const PlanRequest& request);

// A lower bound on the step of any cut and schedule of the row's division.
double plan_bound(const PlanRow& row, const Machine& machine);

}  // namespace pipewright::schedule

#endif  // PIPEWRIGHT_SCHEDULE_PLAN_PLAN_H_
