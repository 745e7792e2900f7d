#ifndef PIPEWRIGHT_SCHEDULES_SCHEDULE_SPEC_H_
#define PIPEWRIGHT_SCHEDULES_SCHEDULE_SPEC_H_

#include <optional>
#include <span>
#include <string_view>

#include "pipewright/ir/schedule.h"

namespace pipewright::schedules {

// The size of a schedule, and options that only some schedules take. 0: not given.
struct Shape {
  int ranks = 0;
  int stages = 0;
  int microbatches = 0;
  int group_size = 0;  // microbatches that run through one stage of a rank before its next; 0
                       // for the schedule's own choice
  bool extra_warmup = false;  // one forward more before the first backward

  // V, where stages are a multiple of ranks.
  int stages_per_rank() const { return stages / ranks; }

  friend bool operator==(const Shape&, const Shape&) = default;
};

enum class Pattern { kLoop, kV };

// Something that a shape must keep to.
struct Constraint {
  std::string_view rule;    // "stages = ranks"
  std::string_view reason;  // "each rank holds one stage"
  bool (*holds)(const Shape&);
};

// An option of a schedule's own, named as on the command line.
struct ShapeOption {
  std::string_view name;  // "group-size"
  std::string_view meaning;
  bool (*is_set)(const Shape&);
};
inline constexpr ShapeOption kShapeOptions[] = {
    {"group-size", "microbatches that run through one stage of a rank before its next",
     [](const Shape& shape) { return shape.group_size != 0; }},
    {"extra-warmup", "one forward more before the first backward",
     [](const Shape& shape) { return shape.extra_warmup; }},
};

// What the catalogue knows of one schedule. Constant data; the functions are pure, any thread.
struct ScheduleSpec {
  std::string_view name;
  std::span<const std::string_view> aliases;
  std::string_view source;  // paper or code
  Pattern pattern;
  int default_stages_per_rank;
  bool splits_backward;     // has I and W beside B
  std::string_view bubble;  // idle time of a rank in a step, F, B, I, W being times of a stage
  std::string_view memory;  // peak of live activations on rank r, in microbatches of a stage
  std::span<const Constraint> constraints;
  std::span<const ShapeOption> options = {};  // those that it takes

  // The order of one rank, for a shape that keeps to the constraints. Linear in its length. Null
  // where ranks depend on each other.
  ir::Row (*make_row)(const Shape&, int rank) = nullptr;
  // The orders of all ranks, where make_row is null. Linear in their length.
  ir::Rows (*make_rows)(const Shape&) = nullptr;
  // Puts idle slots where ranks wait for each other, for orders that PyTorch draws so; null for
  // others.
  void (*align)(ir::ComputeOrder*) = nullptr;
};

}  // namespace pipewright::schedules

#endif  // PIPEWRIGHT_SCHEDULES_SCHEDULE_SPEC_H_
