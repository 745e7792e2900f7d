#ifndef PIPEWRIGHT_EXAMPLES_MEASURED_SEARCH_H_
#define PIPEWRIGHT_EXAMPLES_MEASURED_SEARCH_H_

#include "examples/measured_costs.h"
#include "examples/options.h"
#include "examples/schedule_search.h"
#include "pipewright/comms/world.h"

namespace pipewright::examples {

// `--schedule search`: rank 0 searches a schedule for its measured costs, in the memory of
// --search-memory or else in what the hosts have left, and all ranks return it. Collective over the
// world.
FoundSchedule search_in_memory(const Options& options, const MeasuredCosts& measured,
                               comms::World& world);

}  // namespace pipewright::examples

#endif  // PIPEWRIGHT_EXAMPLES_MEASURED_SEARCH_H_
