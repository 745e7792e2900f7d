#ifndef PIPEWRIGHT_SCHEDULES_REGISTRY_H_
#define PIPEWRIGHT_SCHEDULES_REGISTRY_H_

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "pipewright/ir/diagnostic.h"
#include "pipewright/ir/schedule.h"
#include "pipewright/schedules/schedule_spec.h"

// The catalogue: every schedule that can be made, by name. Constant data and pure functions; any
// thread.

namespace pipewright::schedules {

// All of them; the only list.
std::span<const ScheduleSpec* const> all_schedules();

// The schedule of that name or alias, in any case; null if there is none.
const ScheduleSpec* find_schedule(std::string_view name);

// Names and aliases, for `did you mean`.
std::vector<std::string_view> schedule_names();

// The number of stages that a schedule has where none is asked for: P, or V P.
int default_stages(const ScheduleSpec& spec, int ranks);

// Why the schedule does not exist for a shape, with the nearest legal shapes as its help; none if
// it does.
std::optional<ir::Diagnostic> shape_error(const ScheduleSpec& spec, const Shape& shape);

// The whole order. The shape must be one for which shape_error has nothing to say. Linear in the
// number of cells.
ir::ComputeOrder make_order(const ScheduleSpec& spec, const Shape& shape);

// The order of one rank, without the idle slots that come from other ranks (ScheduleSpec::align).
// Linear in its own length, however many ranks there are, except for schedules whose ranks depend
// on each other (ScheduleSpec::make_rows).
ir::Row make_row(const ScheduleSpec& spec, const Shape& shape, int rank);

}  // namespace pipewright::schedules

#endif  // PIPEWRIGHT_SCHEDULES_REGISTRY_H_
