#include "pipewright/schedules/registry.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cstdint>

#include "pipewright/ir/check.h"
#include "pipewright/ir/printable.h"
#include "pipewright/schedules/chimera.h"
#include "pipewright/schedules/dualpipe.h"
#include "pipewright/schedules/eager_1f1b.h"
#include "pipewright/schedules/gpipe.h"
#include "pipewright/schedules/interleaved_1f1b.h"
#include "pipewright/schedules/interleaved_zero_bubble.h"
#include "pipewright/schedules/looped_bfs.h"
#include "pipewright/schedules/one_f_one_b.h"
#include "pipewright/schedules/one_f_one_b_v.h"
#include "pipewright/schedules/seq_1f1b.h"
#include "pipewright/schedules/v_adaptive.h"
#include "pipewright/schedules/v_half.h"
#include "pipewright/schedules/v_min.h"
#include "pipewright/schedules/zb_auto.h"
#include "pipewright/schedules/zb_h1.h"
#include "pipewright/schedules/zb_h2.h"
#include "pipewright/schedules/zbv_zero_bubble.h"

namespace pipewright::schedules {
namespace {

constexpr const ScheduleSpec* kSchedules[] = {
    &kGPipe,   &kOneFOneB, &kEager1F1B, &kLoopedBfs, &kInterleaved1F1B, &kInterleavedZeroBubble,
    &kZbH1,    &kZbH2,     &kZb1p,      &kZb2p,      &kZbvZeroBubble,   &kDualPipeV,
    &kVHalf,   &kVMin,     &kVAdaptive, &kOneFOneBV, &kSeq1F1B,         &kSeq1F1BI,
    &kChimera, &kDualPipe,
};

bool same_word(std::string_view left, std::string_view right) {
  return std::ranges::equal(left, right, [](unsigned char one, unsigned char other) {
    return std::tolower(one) == std::tolower(other);
  });
}

// The shape that constraints and generators get.
Shape in_slices(Shape shape) {
  shape.slices = std::max(1, shape.slices);
  shape.microbatches *= shape.slices;
  return shape;
}

bool is_legal(const ScheduleSpec& spec, const Shape& shape) {
  return std::ranges::all_of(spec.constraints,
                             [&](const Constraint& one) { return one.holds(in_slices(shape)); });
}

bool takes(const ScheduleSpec& spec, const ShapeOption& option) {
  return std::ranges::any_of(spec.options,
                             [&](const ShapeOption& own) { return own.name == option.name; });
}

// Checks the limits of an action's fields, and that the schedule fits the memory of a workstation.
// Returns the violated limit, or nullopt.
std::optional<std::string> size_error(const Shape& shape) {
  if (shape.ranks > ir::kMaxStages) return fmt::format("at most {} ranks", ir::kMaxStages);
  if (shape.stages > ir::kMaxStages) return fmt::format("at most {} stages", ir::kMaxStages);
  if (shape.microbatches > ir::kMaxMicrobatches)
    return fmt::format("at most {} microbatches", ir::kMaxMicrobatches);
  constexpr int64_t kMostForwards = int64_t{1} << 28;  // 8 GiB of actions with their backwards
  const int slices = std::max(1, shape.slices);
  if (slices > ir::kMaxMicrobatches / std::max(1, shape.microbatches))
    return fmt::format("at most {} slices of all microbatches", ir::kMaxMicrobatches);
  const int64_t forwards = int64_t{shape.stages} * shape.microbatches * slices;
  if (forwards > kMostForwards) return fmt::format("at most {} forwards", kMostForwards);
  return std::nullopt;
}

// The nearest legal values of one member of an illegal shape: at most one below and one above.
std::vector<int> nearest_legal(const ScheduleSpec& spec, Shape shape, int Shape::*number) {
  const int given = shape.*number;
  const int farthest = 4 * shape.ranks + 2 * shape.stages;
  std::vector<int> found;
  for (const int direction : {-1, 1}) {
    for (int distance = 1; distance <= farthest && given + direction * distance >= 1; ++distance) {
      shape.*number = given + direction * distance;
      if (!is_legal(spec, shape)) continue;
      found.push_back(shape.*number);
      break;
    }
  }
  return found;
}

// "8 or 10 microbatches".
std::string counted(const std::vector<int>& numbers, std::string_view one, std::string_view many) {
  return fmt::format("{} {}", fmt::join(numbers, " or "), numbers.back() == 1 ? one : many);
}

// The least whole number of activations that is enough where `memory` is not; 0 if none is.
int least_memory(const ScheduleSpec& spec, Shape shape) {
  const double given = shape.memory;
  for (int memory = 1; memory <= 2 * shape.stages; ++memory) {
    shape.memory = memory;
    if (memory > given && is_legal(spec, shape)) return memory;
  }
  return 0;
}

std::string nearest_text(const ScheduleSpec& spec, const Shape& shape) {
  if (shape.group_size != 0) {
    const std::vector<int> legal = nearest_legal(spec, shape, &Shape::group_size);
    if (!legal.empty()) return fmt::format("nearest: group-size {}", fmt::join(legal, " or "));
  }
  if (shape.memory != 0) {
    if (const int memory = least_memory(spec, shape))
      return fmt::format("nearest: memory {}", memory);
  }
  struct Part {
    int Shape::*number;
    std::string_view one, many;
  };
  for (const Part& part : {Part{&Shape::microbatches, "microbatch", "microbatches"},
                           Part{&Shape::stages, "stage", "stages"}}) {
    const std::vector<int> legal = nearest_legal(spec, shape, part.number);
    if (!legal.empty()) return fmt::format("nearest: {}", counted(legal, part.one, part.many));
  }
  // Both numbers are wrong: suggest the default number of stages, and microbatches for it.
  Shape other = shape;
  other.stages = default_stages(spec, shape.ranks);
  const std::vector<int> legal = nearest_legal(spec, other, &Shape::microbatches);
  if (legal.empty()) return "";
  return fmt::format("nearest: {} and {}", ir::counted(other.stages, "stage", "stages"),
                     counted(legal, "microbatch", "microbatches"));
}

// The schedules that take an option.
std::vector<std::string_view> takers(const ShapeOption& option) {
  std::vector<std::string_view> names;
  for (const ScheduleSpec* spec : kSchedules) {
    if (takes(*spec, option)) names.push_back(spec->name);
  }
  return names;
}

void drop_trailing_idle(ir::Row* row) {
  while (!row->empty() && row->back().is_idle()) row->pop_back();
}

// The rows of a schedule that generates all ranks together.
ir::Rows all_rows(const ScheduleSpec& spec, const Shape& shape, PlanTimes times) {
  if (spec.plan_rows == nullptr) return spec.make_rows(shape);
  const std::vector<StageTimes> unit(static_cast<size_t>(shape.stages));
  if (times.stages.empty()) times.stages = unit;
  return spec.plan_rows(shape, times);
}

}  // namespace

std::span<const ScheduleSpec* const> all_schedules() { return kSchedules; }

const ScheduleSpec* find_schedule(std::string_view name) {
  for (const ScheduleSpec* spec : kSchedules) {
    if (same_word(spec->name, name)) return spec;
    if (std::ranges::any_of(spec->aliases,
                            [&](std::string_view alias) { return same_word(alias, name); }))
      return spec;
  }
  return nullptr;
}

std::vector<std::string_view> schedule_names() {
  std::vector<std::string_view> names;
  for (const ScheduleSpec* spec : kSchedules) {
    names.push_back(spec->name);
    names.insert(names.end(), spec->aliases.begin(), spec->aliases.end());
  }
  return names;
}

int default_stages(const ScheduleSpec& spec, int ranks) {
  // Larger shapes are rejected by shape_error.
  return ranks > ir::kMaxStages ? ranks : spec.default_stages_per_rank * ranks;
}

std::optional<ir::Diagnostic> shape_error(const ScheduleSpec& spec, const Shape& shape) {
  const auto error = [&](std::string_view expected) {
    ir::Diagnostic diagnostic;
    diagnostic.rule = ir::Rule::kUnsupportedShape;
    diagnostic.message = fmt::format(
        "{} does not exist for this shape: expected {}, got {}, {}, {}", spec.name, expected,
        ir::counted(shape.ranks, "rank", "ranks"), ir::counted(shape.stages, "stage", "stages"),
        ir::counted(shape.microbatches, "microbatch", "microbatches"));
    for (const ShapeOption& option : kShapeOptions) {
      if (option.is_set(shape))
        diagnostic.message += fmt::format(", {} {}", option.name, option.value(shape));
    }
    return diagnostic;
  };
  if (shape.ranks < 1 || shape.stages < 1 || shape.microbatches < 1)
    return error("at least 1 of each");
  if (const auto limit = size_error(shape)) return error(*limit);
  if (shape.group_size < 0) return error("a group size of at least 1");
  if (shape.slices < 0) return error("at least 1 slice");
  for (const ShapeOption& option : kShapeOptions) {
    if (!option.is_set(shape) || takes(spec, option)) continue;
    ir::Diagnostic diagnostic;
    diagnostic.rule = ir::Rule::kNotApplicable;
    diagnostic.message = fmt::format("{} does not take `{}`", spec.name, option.name);
    const std::vector<std::string_view> names = takers(option);
    diagnostic.help =
        names.empty() ? "leave it out: it is for files"
                      : fmt::format("leave it out: it is an option of {}", fmt::join(names, ", "));
    return diagnostic;
  }
  for (const Constraint& constraint : spec.constraints) {
    if (constraint.holds(in_slices(shape))) continue;
    ir::Diagnostic diagnostic = error(fmt::format("that {}", constraint.rule));
    diagnostic.notes.push_back({std::string(constraint.reason), {}});
    diagnostic.help = nearest_text(spec, shape);
    return diagnostic;
  }
  return std::nullopt;
}

ir::Placement placement_of(const ScheduleSpec& spec, const Shape& shape) {
  switch (spec.pattern) {
    case Pattern::kLoop:
      return ir::Placement::loop(shape.ranks, shape.stages);
    case Pattern::kV:
      return ir::Placement::v(shape.ranks, shape.stages);
    case Pattern::kBothWays:
      return ir::Placement::both_ways(ir::Placement::loop(shape.ranks, shape.stages),
                                      shape.microbatches / 2);
  }
  PW_CHECK(false, "every pattern has a placement");
}

ir::ComputeOrder make_order(const ScheduleSpec& spec, const Shape& of_microbatches,
                            const PlanTimes& times) {
  PW_CHECK(!shape_error(spec, of_microbatches), "the shape keeps to the schedule's constraints");
  const Shape shape = in_slices(of_microbatches);
  ir::ComputeOrder order;
  order.name = spec.name;
  order.placement = placement_of(spec, shape);
  order.num_microbatches = shape.microbatches;
  order.slices = shape.slices;
  if (spec.make_row == nullptr) order.rows = all_rows(spec, shape, times);
  order.rows.reserve(static_cast<size_t>(shape.ranks));
  for (int rank = 0; spec.make_row != nullptr && rank < shape.ranks; ++rank) {
    order.rows.push_back(spec.make_row(shape, rank));
    drop_trailing_idle(&order.rows.back());
  }
  if (spec.align != nullptr) spec.align(&order);
  for (ir::Row& row : order.rows) drop_trailing_idle(&row);
  return order;
}

ir::Row make_row(const ScheduleSpec& spec, const Shape& of_microbatches, int rank) {
  PW_CHECK(!shape_error(spec, of_microbatches) && rank >= 0 && rank < of_microbatches.ranks,
           "the shape is legal and has the rank");
  const Shape shape = in_slices(of_microbatches);
  if (spec.make_row == nullptr) return all_rows(spec, shape, {})[static_cast<size_t>(rank)];
  ir::Row row = spec.make_row(shape, rank);
  drop_trailing_idle(&row);
  return row;
}

}  // namespace pipewright::schedules
