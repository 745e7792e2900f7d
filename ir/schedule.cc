#include "pipewright/ir/schedule.h"

#include <algorithm>
#include <functional>
#include <utility>

namespace pipewright::ir {

std::string_view name(Level level) {
  switch (level) {
    case Level::kComputeOnly:
      return "compute_only";
    case Level::kComputeComms:
      return "compute_comms";
  }
  return "";
}

std::optional<Level> parse_level(std::string_view text) {
  for (const Level level : {Level::kComputeOnly, Level::kComputeComms}) {
    if (text == name(level)) return level;
  }
  return std::nullopt;
}

bool recomputes(const Schedule& schedule, int stage) {
  return std::ranges::binary_search(schedule.recompute, stage);
}

bool offloads(const Schedule& schedule, int stage) {
  return std::ranges::binary_search(schedule.offload, stage);
}

bool are_ascending_stages(const std::vector<int>& stages, int num_stages) {
  return std::ranges::adjacent_find(stages, std::greater_equal<>()) == stages.end() &&
         (stages.empty() || (stages.front() >= 0 && stages.back() < num_stages));
}

bool has_backward(const Row& row) {
  return std::ranges::any_of(row, [](const Action& action) {
    return std::ranges::any_of(action.parts(),
                               [](ActionPart part) { return is_backward(part.kind()); });
  });
}

bool has_backward(const Schedule& schedule) {
  return std::ranges::any_of(schedule.rows, [](const Row& row) { return has_backward(row); });
}

KindSet kinds_in(const Rows& rows) {
  KindSet kinds = 0;
  for (const Row& row : rows) {
    for (const Action& action : row) kinds |= bit_of(action.kind());
  }
  return kinds;
}

AnySchedule make_schedule(Level level, Schedule schedule) {
  if (level == Level::kComputeOnly) return ComputeOrder{std::move(schedule)};
  return Program{std::move(schedule)};
}

Level level_of(const AnySchedule& schedule) {
  return std::holds_alternative<ComputeOrder>(schedule) ? Level::kComputeOnly
                                                        : Level::kComputeComms;
}

const Schedule& schedule_of(const AnySchedule& schedule) {
  return std::visit([](const Schedule& base) -> const Schedule& { return base; }, schedule);
}

}  // namespace pipewright::ir
