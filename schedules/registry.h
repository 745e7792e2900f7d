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

// The catalogue: every schedule that can be generated, by name.
//
//   const ScheduleSpec& spec = *find_schedule("ZBV");
//   const Shape shape{.ranks = 4, .stages = default_stages(spec, 4), .microbatches = 8};
//   if (!shape_error(spec, shape)) order = make_order(spec, shape);
//
// schedule/compile/compile.h does this, and lowers and verifies the result. Constant data and pure
// functions, callable from any thread.

namespace pipewright::schedules {

// All schedules, in the order in which they are listed to users.
std::span<const ScheduleSpec* const> all_schedules();

// Finds a schedule by name or alias, ignoring case. Returns null if there is none.
const ScheduleSpec* find_schedule(std::string_view name);

// All names and aliases, for `did you mean` hints.
std::vector<std::string_view> schedule_names();

// The number of stages if the user gives none: ranks times ScheduleSpec::default_stages_per_rank.
int default_stages(const ScheduleSpec& spec, int ranks);

// Checks a shape against the constraints of a schedule. Returns the error (PW071), with the nearest
// valid shapes as its help, or nothing if the shape is valid.
std::optional<ir::Diagnostic> shape_error(const ScheduleSpec& spec, const Shape& shape);

// The placement of a schedule. The shape must be valid (shape_error).
ir::Placement placement_of(const ScheduleSpec& spec, const Shape& shape);

// Generates the compute order of all ranks. The shape must be valid (shape_error). `times` matters
// only to schedules that plan with costs (ScheduleSpec::plan_rows). Linear in the number of cells,
// idle slots included.
ir::ComputeOrder make_order(const ScheduleSpec& spec, const Shape& shape,
                            const PlanTimes& times = {});

// Generates the order of one rank, for unit times and without the idle slots that
// ScheduleSpec::align adds. Linear in its own length, independent of the number of ranks, except
// for schedules that generate all ranks together (ScheduleSpec::make_rows and plan_rows).
ir::Row make_row(const ScheduleSpec& spec, const Shape& shape, int rank);

}  // namespace pipewright::schedules

#endif  // PIPEWRIGHT_SCHEDULES_REGISTRY_H_
