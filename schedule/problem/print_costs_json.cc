#include <fmt/format.h>

#include <ostream>
#include <span>
#include <string>

#include "pipewright/schedule/problem/costs_json.h"

namespace pipewright::schedule {
namespace {

// fmt prints the shortest decimal that reads back as the same number.
std::string list(std::span<const double> values) {
  return fmt::format("[{}]", fmt::join(values, ", "));
}

std::string links_json(const Costs& costs) {
  std::string text;
  for (const auto& [ranks, link] : costs.links) {
    text += text.empty() ? "[" : ",";
    text += fmt::format("\n    {{\"from\": {}, \"to\": {}", ranks.first, ranks.second);
    if (link.latency) text += fmt::format(", \"latency\": {}", *link.latency);
    if (link.bandwidth) text += fmt::format(", \"bandwidth\": {}", *link.bandwidth);
    text += "}";
  }
  return text + "\n  ]";
}

}  // namespace

void print_costs(const Costs& costs, std::ostream& out) {
  const Costs defaults;
  out << "{\n  \"version\": 1";
  const auto add = [&](std::string_view key, const std::string& value) {
    out << fmt::format(",\n  \"{}\": {}", key, value);
  };
  if (!costs.unit.empty()) add("unit", '"' + costs.unit + '"');
  for (const StageCost& field : stage_costs()) {
    const PerStage& values = costs.*(field.values);
    if (values == defaults.*(field.values)) continue;
    add(field.name, values.is_list() ? list(values.values()) : fmt::format("{}", values.at(0)));
  }
  if (costs.overlap != defaults.overlap) add("overlap", fmt::format("{}", costs.overlap));
  if (!costs.rank_scale.empty()) add("rank_scale", list(costs.rank_scale));
  if (!costs.microbatch_scale.empty()) add("microbatch_scale", list(costs.microbatch_scale));
  if (costs.link.latency != defaults.link.latency)
    add("latency", fmt::format("{}", costs.link.latency));
  if (costs.link.bandwidth != defaults.link.bandwidth)
    add("bandwidth", fmt::format("{}", costs.link.bandwidth));
  if (!costs.links.empty()) add("links", links_json(costs));
  out << "\n}\n";
}

}  // namespace pipewright::schedule
