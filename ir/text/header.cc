#include "pipewright/ir/text/header.h"

#include <fmt/format.h>

#include <algorithm>

namespace pipewright::ir {
namespace {

constexpr HeaderKey kKeys[] = {
    {"name", false, "any text",
     [](const Schedule& schedule, Level) {
       return schedule.name.empty() ? std::nullopt : std::optional(schedule.name);
     }},
    {"level", true, "compute_only|compute_comms",
     [](const Schedule&, Level level) { return std::optional(std::string(name(level))); }},
    {"ranks", true, "P",
     [](const Schedule& schedule, Level) {
       return std::optional(std::to_string(schedule.placement.num_ranks()));
     }},
    {"stages", true, "S",
     [](const Schedule& schedule, Level) {
       return std::optional(std::to_string(schedule.placement.num_stages()));
     }},
    {"microbatches", true, "M",
     [](const Schedule& schedule, Level) {
       return std::optional(std::to_string(schedule.num_microbatches));
     }},
    {"placement", true, "loop|v|the rank of each stage",
     [](const Schedule& schedule, Level) { return std::optional(schedule.placement.to_string()); }},
    {"recompute", false, "different stages in ascending order",
     [](const Schedule& schedule, Level) {
       return schedule.recompute.empty()
                  ? std::nullopt
                  : std::optional(fmt::format("{}", fmt::join(schedule.recompute, " ")));
     }},
};

}  // namespace

std::span<const HeaderKey> header_keys() { return kKeys; }

std::vector<std::string_view> header_names() {
  std::vector<std::string_view> names;
  for (const HeaderKey& key : kKeys) names.push_back(key.name);
  for (const LoweringPolicy& policy : lowering_policies()) names.push_back(policy.name);
  return names;
}

std::string value_in_words(std::string_view value) {
  if (value == "N") return "a non-negative integer";
  if (value.size() == 1 && value != "v") return "a positive integer";
  for (const ChannelModelInfo& row : channel_models()) {
    if (value == row.name) return fmt::format("{} ({})", value, row.meaning);
  }
  return std::string(value);
}

std::string values_in_words(std::string_view values) {
  std::string words;
  while (!values.empty()) {
    const size_t size = std::min(values.find('|'), values.size());
    const std::string_view one = values.substr(0, size);
    values.remove_prefix(std::min(size + 1, values.size()));
    if (!words.empty()) words += values.empty() ? " or " : ", ";
    words += value_in_words(one);
  }
  return words;
}

}  // namespace pipewright::ir
