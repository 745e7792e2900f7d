// Writes the JSON form of a schedule. A tree of all cells would take many times their memory, so
// only the values of the header become one.
#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <ostream>
#include <string>
#include <utility>

#include "pipewright/ir/text/action_text.h"
#include "pipewright/ir/text/header.h"
#include "pipewright/ir/text/schedule_json.h"
#include "pipewright/ir/text/schedule_json_values.h"

namespace pipewright::ir {
namespace {

using Json = nlohmann::json;

// A header value as JSON.
Json to_json(std::string_view values, const std::string& text) {
  if (is_kind(values, JsonKind::kBoolean)) return text == "true";
  const bool digits = text.find_first_not_of("0123456789") == std::string::npos;
  if (digits && is_kind(values, JsonKind::kNumber)) return std::stoll(text);
  return text;
}

Json placement_json(const Placement& placement) {
  const std::string pattern = placement.to_string();
  if (pattern == "loop" || pattern == "v") return pattern;
  Json ranks = Json::array();
  for (int stage = 0; stage < placement.num_stages(); ++stage)
    ranks.push_back(placement.rank_of(stage));
  return ranks;
}

// One line per rank.
void print_recording(const Rows& rows, const Recording& recording, std::ostream& out) {
  out << ",\n  \"recording\": {\n    \"unit\": " << Json(recording.unit).dump()
      << ",\n    \"times\": [";
  std::string text;
  for (size_t rank = 0; rank < rows.size(); ++rank) {
    text = rank == 0 ? "\n      [" : ",\n      [";
    for (size_t step = 0; step < rows[rank].size(); ++step) {
      if (step > 0) text += ", ";
      const Interval& one = recording.timeline.at(rank, step);
      text += rows[rank][step].is_idle() ? "null" : fmt::format("[{}, {}]", one.start, one.end);
    }
    out << text << "]";
  }
  out << "\n    ]\n  }";
}

void print(const AnySchedule& any, const Recording* recording, std::ostream& out) {
  const Schedule& schedule = schedule_of(any);
  out << "{\n  \"version\": " << kJsonVersion;
  for (const HeaderKey& key : header_keys()) {
    const auto value = key.get(schedule, level_of(any));
    if (!value) continue;
    const Json json = key.name == "placement"   ? placement_json(schedule.placement)
                      : key.name == "recompute" ? Json(schedule.recompute)
                                                : to_json(key.values, *value);
    out << ",\n  \"" << key.name << "\": " << json.dump();
  }
  Json lowering = Json::object();
  for (const LoweringPolicy& policy : lowering_policies()) {
    if (const auto value = policy.get(schedule.lowering))
      lowering[std::string(policy.name)] = to_json(policy.values, *value);
  }
  if (!lowering.empty()) out << ",\n  \"lowering\": " << lowering.dump();
  // Tokens need no escapes.
  out << ",\n  \"rows\": [";
  std::string text;
  for (size_t rank = 0; rank < schedule.rows.size(); ++rank) {
    text = rank == 0 ? "\n    [" : ",\n    [";
    bool first = true;
    for (const Action& action : schedule.rows[rank]) {
      if (!std::exchange(first, false)) text += ", ";
      if (action.is_idle()) {
        text += "null";
      } else {
        text += '"';
        append_action(action, &text);
        text += '"';
      }
    }
    out << text << "]";
  }
  out << "\n  ]";
  if (recording != nullptr) print_recording(schedule.rows, *recording, out);
  out << "\n}\n";
}

}  // namespace

void print_json(const AnySchedule& any, std::ostream& out) { print(any, nullptr, out); }

void print_json(const AnySchedule& any, const Recording& recording, std::ostream& out) {
  print(any, &recording, out);
}

}  // namespace pipewright::ir
