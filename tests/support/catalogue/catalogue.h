#ifndef PIPEWRIGHT_TESTS_SUPPORT_CATALOGUE_CATALOGUE_H_
#define PIPEWRIGHT_TESTS_SUPPORT_CATALOGUE_CATALOGUE_H_

#include <vector>

#include "pipewright/schedules/registry.h"

namespace pipewright::tests {

// The catalogue without the schedules with two replicas of the model, for tests whose stages tie no
// parameters (modules/tied_parameters.h).
inline std::vector<const schedules::ScheduleSpec*> schedules_of_one_replica() {
  std::vector<const schedules::ScheduleSpec*> all;
  for (const schedules::ScheduleSpec* spec : schedules::all_schedules()) {
    if (spec->pattern != schedules::Pattern::kBothWays) all.push_back(spec);
  }
  return all;
}

}  // namespace pipewright::tests

#endif  // PIPEWRIGHT_TESTS_SUPPORT_CATALOGUE_CATALOGUE_H_
