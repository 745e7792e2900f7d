#ifndef PIPEWRIGHT_EXAMPLES_MEASURED_SEARCH_H_
#define PIPEWRIGHT_EXAMPLES_MEASURED_SEARCH_H_

#include <functional>
#include <vector>

#include "examples/local_model.h"
#include "examples/options.h"
#include "examples/schedule_search.h"
#include "examples/text.h"
#include "pipewright/comms/mesh.h"
#include "pipewright/comms/world.h"
#include "pipewright/executor/executor.h"

namespace pipewright::examples {

// How the steps of a model are run.
using RunOf = std::function<executor::ExecutorOptions(const LocalModel& model)>;

// `--schedule search`: tries a few schedules, and returns them, the fastest first. For each number
// of stages per rank it measures costs, and rank 0 searches a schedule with split and one with
// whole backwards for them, in the memory of --search-memory or else in what the hosts have left;
// 1F1B is tried too, if it fits. Costs leave out what decides between such schedules: that I and W
// may take longer than B, that more stages are more work, and that ranks may share cores. Builds
// models of its own, one at a time. Collective over the world; equal on all ranks but for `costs`.
std::vector<FoundSchedule> try_schedules(const Options& options, const RunOf& run_of,
                                         const Text& text, comms::Mesh& mesh, comms::World& world,
                                         at::Device device);

}  // namespace pipewright::examples

#endif  // PIPEWRIGHT_EXAMPLES_MEASURED_SEARCH_H_
