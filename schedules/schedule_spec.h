#ifndef PIPEWRIGHT_SCHEDULES_SCHEDULE_SPEC_H_
#define PIPEWRIGHT_SCHEDULES_SCHEDULE_SPEC_H_

#include <optional>
#include <span>
#include <string_view>

#include "ir/schedule.h"

namespace pipewright::schedules {

// How large a schedule is to be made.
struct Shape {
  int ranks;
  int stages;
  int microbatches;

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

  // The order of one rank, for a shape that keeps to the constraints. Linear in its length.
  ir::Row (*make_row)(const Shape&, int rank);
  // Puts idle slots where ranks wait for each other, for orders that PyTorch draws so; null for
  // others.
  void (*align)(ir::ComputeOrder*);
};

}  // namespace pipewright::schedules

#endif  // PIPEWRIGHT_SCHEDULES_SCHEDULE_SPEC_H_
