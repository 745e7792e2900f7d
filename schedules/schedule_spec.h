#ifndef PIPEWRIGHT_SCHEDULES_SCHEDULE_SPEC_H_
#define PIPEWRIGHT_SCHEDULES_SCHEDULE_SPEC_H_

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "pipewright/ir/schedule.h"

namespace pipewright::schedules {

// The size of a schedule, and options that only some schedules take. 0 means not given.
struct Shape {
  int ranks = 0;
  int stages = 0;
  int microbatches = 0;
  int group_size = 0;  // consecutive microbatches per stage before a rank switches to its next
                       // stage; 0 for the schedule's default
  bool extra_warmup = false;  // one more forward before the first backward
  double memory = 0;  // limit in activations per rank: 1 is what one microbatch leaves on all
                      // stages of a rank
  int slices = 0;     // parts of each microbatch along its sequence; 0 for one, or those of a file
  int replicas = 0;   // of the model, in a file; 0 for those of the schedule or file

  // Stages must be a multiple of ranks.
  int stages_per_rank() const { return stages / ranks; }

  friend bool operator==(const Shape&, const Shape&) = default;
};

// How long the actions of one stage take, as integers in any unit, for schedules that plan with
// costs. A transfer is that of the stage's output or input gradient to the neighbouring stage.
struct StageTimes {
  int64_t forward = 1, backward_input = 1, backward_weight = 1;
  int64_t output_transfer = 0, gradient_transfer = 0;
};

// The times that a schedule is planned for.
struct PlanTimes {
  std::span<const StageTimes> stages;  // one entry per stage; empty for unit times
  // Factors on the times of F, I and W of a microbatch, one per microbatch; empty for 1.
  std::span<const double> microbatch_scale = {};

  // How long an action takes for this microbatch, if it takes `time` for one of factor 1.
  int64_t scaled(int64_t time, int microbatch) const {
    if (microbatch_scale.empty()) return time;
    return std::llround(static_cast<double>(time) *
                        microbatch_scale[static_cast<size_t>(microbatch)]);
  }
};

// How stages are placed on ranks: round robin, up and down again, or one replica of the model
// forth and one back, where stage s is on ranks s and P-1-s (ir/placement.h).
enum class Pattern { kLoop, kV, kBothWays };

// A condition on the shape of a schedule.
struct Constraint {
  std::string_view rule;    // "stages = ranks"
  std::string_view reason;  // "each rank holds one stage"
  bool (*holds)(const Shape&);
};

// An option that only some schedules take, named as on the command line.
struct ShapeOption {
  std::string_view name;  // "group-size"
  std::string_view meaning;
  double (*value)(const Shape&);  // 0 if it is not given
  bool of_files = false;          // files may have it too

  bool is_set(const Shape& shape) const { return value(shape) != 0; }
};
inline constexpr ShapeOption kShapeOptions[] = {
    {"group-size", "microbatches that run through one stage of a rank before its next",
     [](const Shape& shape) { return static_cast<double>(shape.group_size); }},
    {"extra-warmup", "one forward more before the first backward",
     [](const Shape& shape) { return shape.extra_warmup ? 1.0 : 0.0; }},
    {"memory", "plan for K activations per rank, each of one microbatch on all stages of the rank",
     [](const Shape& shape) { return shape.memory; }},
    {"slices", "cut each microbatch into K parts along its sequence",
     [](const Shape& shape) { return shape.slices > 1 ? static_cast<double>(shape.slices) : 0; },
     true},
    {"replicas",
     "the number of replicas of the model, of which each runs a part of the microbatches",
     [](const Shape& shape) { return static_cast<double>(shape.replicas); }, true},
};
inline constexpr std::span<const ShapeOption> kInterleavedOptions(kShapeOptions, 2);
inline constexpr std::span<const ShapeOption> kMemoryOption(kShapeOptions + 2, 1);
inline constexpr std::span<const ShapeOption> kSlicesOption(kShapeOptions + 3, 1);

// One schedule of the catalogue: its description, constraints and generator. Constant data; the
// functions are pure and callable from any thread. CONTRIBUTING.md says how to add one.
struct ScheduleSpec {
  std::string_view name;
  std::span<const std::string_view> aliases;
  std::string_view source;  // paper or code
  Pattern pattern;
  int default_stages_per_rank;
  bool splits_backward;     // uses I and W, not only B
  std::string_view bubble;  // idle time per rank and step, in the times F, B, I, W of one stage
  std::string_view bubble_where = {};  // the shapes and times for which it holds; empty for all
  std::string_view bubble_note = {};   // what supports it, if it is no theorem; may be empty
  std::string_view memory;  // peak of live activations on rank r, in microbatches of one stage
  std::span<const Constraint> constraints;
  std::span<const ShapeOption> options = {};  // the options that it takes

  // Generates the order of one rank for a valid shape, in time linear in its length. Null if the
  // ranks can only be generated together. Constraints and all generators get the slices of all
  // microbatches as Shape::microbatches, and the slices of one as Shape::slices.
  ir::Row (*make_row)(const Shape&, int rank) = nullptr;
  // Generates the orders of all ranks, in linear time.
  ir::Rows (*make_rows)(const Shape&) = nullptr;
  // The same for these times. Exactly one of the three generators is set.
  ir::Rows (*plan_rows)(const Shape&, const PlanTimes&) = nullptr;
  // Inserts idle slots where ranks wait for each other, as PyTorch does for some schedules; null
  // for the others.
  void (*align)(ir::ComputeOrder*) = nullptr;
};

}  // namespace pipewright::schedules

#endif  // PIPEWRIGHT_SCHEDULES_SCHEDULE_SPEC_H_
