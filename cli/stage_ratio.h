#ifndef PIPEWRIGHT_CLI_STAGE_RATIO_H_
#define PIPEWRIGHT_CLI_STAGE_RATIO_H_

#include <string>

#include "pipewright/cli/invocation.h"
#include "pipewright/ir/schedule.h"
#include "pipewright/schedule/problem/costs.h"

// Two schedules of one model, cut into different numbers of stages, for commands that compare.

namespace pipewright::cli {

// The size of a stage of the second schedule: `before` / `after` of a stage of the first.
struct StageRatio {
  int before = 1, after = 1;  // numbers of stages

  bool is_one() const { return before == after; }
  double value() const { return static_cast<double>(before) / after; }
};

// 1 unless all costs are the default ones, which are per stage and say nothing about the model.
StageRatio ratio_of(const Invocation& invocation, const ir::Schedule& before,
                    const ir::Schedule& after);

// Scales the times of the second schedule.
void scale_stages(const StageRatio& ratio, schedule::Costs* costs);

// "compared as one model: a stage of the second is 4/8 of a stage of the first, in time and in
// activations"
std::string describe(const StageRatio& ratio);

}  // namespace pipewright::cli

#endif  // PIPEWRIGHT_CLI_STAGE_RATIO_H_
