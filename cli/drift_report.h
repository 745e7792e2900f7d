#ifndef PIPEWRIGHT_CLI_DRIFT_REPORT_H_
#define PIPEWRIGHT_CLI_DRIFT_REPORT_H_

#include <iosfwd>
#include <string_view>

#include "pipewright/cli/json.h"
#include "pipewright/cli/run.h"
#include "pipewright/ir/schedule.h"
#include "pipewright/schedule/simulate/drift.h"

namespace pipewright::cli {

// Two runs of one schedule, of which the second is measured, in one unit.
struct RunPair {
  const ir::Schedule& schedule;
  const Simulation& predicted;
  const Simulation& measured;
  schedule::Baseline baseline;
  std::string_view first_name = "predicted";  // the columns of the report
  std::string_view second_name = "measured";
};

// Prints how the two differ: in total, per kind and rank, the worst actions, slow links, and a
// straggler.
void print_drift(const RunPair& runs, std::ostream& out);
// The same as a JSON object.
Json drift_json(const RunPair& runs);

}  // namespace pipewright::cli

#endif  // PIPEWRIGHT_CLI_DRIFT_REPORT_H_
