#ifndef PIPEWRIGHT_EXAMPLES_MEASURED_COSTS_H_
#define PIPEWRIGHT_EXAMPLES_MEASURED_COSTS_H_

#include <string>

#include "examples/local_model.h"
#include "examples/options.h"
#include "examples/text.h"
#include "pipewright/comms/mesh.h"
#include "pipewright/executor/executor.h"
#include "pipewright/schedule/problem/costs.h"

// What the actions of a schedule cost on this machine, for `--profile` and `--schedule search`.

namespace pipewright::examples {

// Of the steps that are measured, as of those that they are compared with, the fastest counts: the
// machine has disturbed it least.
inline constexpr int kMeasuredSteps = 3;

struct MeasuredCosts {
  schedule::Costs costs;        // in milliseconds; on the first rank of each pipeline
  double seconds = 0;           // of the fastest step; on the first rank of each pipeline
  double activation_bytes = 0;  // of tensors, per microbatch that is alive on this rank
};

// Runs a few steps of `program` without an optimizer, and returns the costs of the fastest one
// (schedule/simulate/recorded_costs.h). Collective over the mesh. The model is as before: no weight
// has changed, and no gradient is left.
MeasuredCosts measure_costs(const Options& options, const ir::Program& program, LocalModel& model,
                            const executor::ExecutorOptions& run, const Text& text,
                            const comms::Mesh& mesh, comms::World& world);

// Writes a costs file (schedule/problem/COSTS.md); an older file is replaced at once or stays.
// Throws checkpoint::FileError.
void write_costs(const std::string& path, const schedule::Costs& costs);

}  // namespace pipewright::examples

#endif  // PIPEWRIGHT_EXAMPLES_MEASURED_COSTS_H_
