#ifndef PIPEWRIGHT_EXAMPLES_MEASURED_SEARCH_H_
#define PIPEWRIGHT_EXAMPLES_MEASURED_SEARCH_H_

#include "examples/local_model.h"
#include "examples/options.h"
#include "examples/schedule_search.h"
#include "examples/text.h"
#include "pipewright/comms/mesh.h"
#include "pipewright/executor/executor.h"

namespace pipewright::examples {

// Of the steps that are measured, as of those that they are compared with, the fastest counts: the
// machine has disturbed it least.
inline constexpr int kMeasuredSteps = 3;

// `--schedule search`. Collective over the world: runs a few steps of `program`,
// program_to_measure(), without an optimizer; rank 0 searches a schedule for the costs of the
// fastest one, in the memory of --search-memory or else in what the hosts have left, and all ranks
// return it. The model is as before: no weight has changed, and no gradient is left.
FoundSchedule measure_and_search(const Options& options, const ir::Program& program,
                                 LocalModel& model, const executor::ExecutorOptions& run,
                                 const Text& text, comms::Mesh& mesh, comms::World& world);

}  // namespace pipewright::examples

#endif  // PIPEWRIGHT_EXAMPLES_MEASURED_SEARCH_H_
