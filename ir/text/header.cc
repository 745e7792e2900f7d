#include "pipewright/ir/text/header.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <functional>
#include <utility>
#include <vector>

#include "pipewright/ir/parse_number.h"
#include "pipewright/ir/printable.h"
#include "pipewright/ir/text/shape.h"
#include "pipewright/ir/text/spelling.h"

namespace pipewright::ir {
namespace {

// The map of replica 1.
constexpr std::string_view kSecondMap = "placement 1";
constexpr std::string_view kDifferentStages = "different stages in ascending order";

// Of an empty list, nullopt.
std::optional<std::string> joined(const std::vector<int>& numbers) {
  if (numbers.empty()) return std::nullopt;
  return fmt::format("{}", fmt::join(numbers, " "));
}

constexpr HeaderKey kKeys[] = {
    {"name", false, false, "any text",
     [](const Schedule& schedule, Level) {
       return schedule.name.empty() ? std::nullopt : std::optional(schedule.name);
     }},
    {"level", true, false, "compute_only or compute_comms",
     [](const Schedule&, Level level) { return std::optional(std::string(name(level))); }},
    {"ranks", true, true, "a positive integer",
     [](const Schedule& schedule, Level) {
       return std::optional(std::to_string(schedule.placement.num_ranks()));
     }},
    {"stages", true, true, "a positive integer",
     [](const Schedule& schedule, Level) {
       return std::optional(std::to_string(schedule.placement.num_stages()));
     }},
    {"microbatches", true, true, "a positive integer",
     [](const Schedule& schedule, Level) {
       return std::optional(std::to_string(schedule.num_microbatches / schedule.slices));
     }},
    {"slices", false, true, "a positive integer",
     [](const Schedule& schedule, Level) {
       return schedule.slices == 1 ? std::nullopt : std::optional(std::to_string(schedule.slices));
     }},
    {"replicas", false, true, "1 or 2",
     [](const Schedule& schedule, Level) {
       const int replicas = schedule.placement.num_replicas();
       return replicas == 1 ? std::nullopt : std::optional(std::to_string(replicas));
     }},
    {"placement", true, false, "loop, v or the rank of each stage",
     [](const Schedule& schedule, Level) { return std::optional(schedule.placement.to_string()); }},
    {kSecondMap, false, false, "loop, v or the rank of each stage",
     [](const Schedule& schedule, Level) {
       return schedule.placement.num_replicas() == 1
                  ? std::nullopt
                  : std::optional(schedule.placement.replica(1).to_string());
     }},
    {"recompute", false, false, kDifferentStages,
     [](const Schedule& schedule, Level) { return joined(schedule.recompute); }},
    {"offload", false, false, kDifferentStages,
     [](const Schedule& schedule, Level) { return joined(schedule.offload); }},
    {"cut", false, false, "the number of layers of each stage",
     [](const Schedule& schedule, Level) { return joined(schedule.cut); }},
};

}  // namespace

std::span<const HeaderKey> header_keys() { return kKeys; }

std::vector<std::string_view> header_names() {
  std::vector<std::string_view> names;
  for (const HeaderKey& key : kKeys) names.push_back(key.name);
  for (const LoweringPolicy& policy : lowering_policies()) names.push_back(policy.name);
  return names;
}

std::string choice_in_words(std::string_view choice) {
  for (const ChannelModelInfo& row : channel_models()) {
    if (choice == row.name) return fmt::format("{} ({})", choice, row.meaning);
  }
  return std::string(choice);
}

std::string values_in_words(const LoweringPolicy& policy) {
  const PolicyValues& values = policy.values;
  std::vector<std::string> words;
  if (values.kind == PolicyKind::kFlag) words = {"true", "false"};
  if (values.kind == PolicyKind::kCount || values.kind == PolicyKind::kCounts)
    words.emplace_back(values.least == 0 ? "a non-negative integer" : "a positive integer");
  for (const std::string_view choice : values.choices) words.push_back(choice_in_words(choice));
  if (values.kind == PolicyKind::kCounts) words.emplace_back("one integer per rank");
  const std::string last = words.back();
  words.pop_back();
  return words.empty() ? last : fmt::format("{} or {}", fmt::join(words, ", "), last);
}

namespace {

// Whether a .plan can represent the text as a value.
bool is_one_line(const std::string& text) {
  return printable(text) == text && !text.empty() && text.front() != ' ' && text.back() != ' ';
}

// "0 1 1 0" as numbers from 0; nullopt for anything else.
std::optional<std::vector<int>> parse_numbers(std::string_view text) {
  std::vector<int> numbers;
  while (!text.empty()) {
    const size_t size = std::min(text.find(' '), text.size());
    int number = 0;
    const auto [stop, error] = std::from_chars(text.data(), text.data() + size, number);
    if (error != std::errc() || stop != text.data() + size || number < 0) return std::nullopt;
    numbers.push_back(number);
    text.remove_prefix(size);
    text.remove_prefix(std::min(text.find_first_not_of(' '), text.size()));
  }
  return numbers;
}

void bad_value(std::string_view key, std::string_view expected, std::string_view value,
               const Place& place, Diagnostics* diagnostics) {
  diagnostics->error(Rule::kBadValue,
                     fmt::format("`{}`: expected {}, got {}", key, expected, backticked(value)),
                     place);
}

}  // namespace

const HeaderReader::Entry* HeaderReader::find(std::string_view key) const {
  const auto entry = entries_.find(key);
  return entry == entries_.end() || entry->second.refused ? nullptr : &entry->second;
}

void HeaderReader::set(std::string_view key, std::string_view value, const Place& key_place,
                       const Place& value_place, Diagnostics* diagnostics) {
  const std::vector<std::string_view> names = header_names();
  if (std::ranges::find(names, key) == names.end()) {
    Diagnostic& error = diagnostics->error(
        Rule::kUnknownKey, fmt::format("unknown key {}", backticked(key)), key_place);
    error.help = did_you_mean(key, names);
    if (error.help.empty()) error.help = fmt::format("the keys are {}", fmt::join(names, ", "));
    return;
  }
  const auto [entry, is_new] = entries_.try_emplace(
      std::string(key), Entry{std::string(value), key_place, value_place, false});
  if (!is_new) {
    diagnostics
        ->error(Rule::kDuplicateKey, fmt::format("duplicate key {}", backticked(key)), key_place)
        .notes.push_back({"first used here", entry->second.key_place});
  }
}

std::string HeaderReader::schedule_name(Diagnostics* diagnostics) const {
  const Entry* entry = find("name");
  if (entry == nullptr) return "";
  if (!is_one_line(entry->value))
    bad_value("name", "one line of printable text without blanks around it", entry->value,
              entry->value_place, diagnostics);
  return entry->value;
}

std::optional<Level> HeaderReader::level(Diagnostics* diagnostics) const {
  const Entry* entry = find("level");
  if (entry == nullptr) return std::nullopt;
  const std::optional<Level> level = parse_level(entry->value);
  if (!level)
    bad_value("level", "compute_only or compute_comms", entry->value, entry->value_place,
              diagnostics);
  return level;
}

std::optional<int> HeaderReader::number(std::string_view key, int most,
                                        Diagnostics* diagnostics) const {
  const Entry* entry = find(key);
  if (entry == nullptr) return std::nullopt;
  const std::optional<int> number = parse_positive(entry->value, most);
  if (!number)
    bad_value(key, fmt::format("an integer from 1 to {}", most), entry->value, entry->value_place,
              diagnostics);
  return number;
}

std::optional<Placement> HeaderReader::map(std::string_view key, int ranks, int stages,
                                           Diagnostics* diagnostics) const {
  const Entry* entry = find(key);
  if (entry == nullptr) return std::nullopt;
  const std::string& value = entry->value;
  const auto refuse = [&](std::string message, std::string help) {
    diagnostics->error(Rule::kPlacement, std::move(message), entry->value_place).help =
        std::move(help);
    return std::nullopt;
  };
  std::optional<Placement> placement;
  if (value == "loop") {
    placement = Placement::loop(ranks, stages);
  } else if (value == "v") {
    if (stages % ranks != 0) {
      return refuse(fmt::format("{} `v`: expected a multiple of {}, got {}", key,
                                counted(ranks, "stage", "stages"), stages),
                    fmt::format("set `{}: loop`", key));
    }
    placement = Placement::v(ranks, stages);
  } else {
    std::optional<std::vector<int>> map = parse_numbers(value);
    if (!map || map->empty()) {
      bad_value(key, "`loop`, `v` or the rank of each stage", value, entry->value_place,
                diagnostics);
      return std::nullopt;
    }
    if (map->size() != static_cast<size_t>(stages)) {
      return refuse(fmt::format("`{}`: expected the ranks of {}, got {}", key,
                                counted(stages, "stage", "stages"), map->size()),
                    fmt::format("set `stages: {}`, or list the rank of each stage", map->size()));
    }
    const int highest = *std::ranges::max_element(*map);
    for (size_t stage = 0; stage < map->size(); ++stage) {
      if ((*map)[stage] >= ranks) {
        return refuse(fmt::format("`{}`: expected a rank from 0 to {} for stage {}, got {}", key,
                                  ranks - 1, stage, (*map)[stage]),
                      fmt::format("set `ranks: {}`, or correct the rank", highest + 1));
      }
    }
    placement = Placement::custom(ranks, std::move(*map));
  }
  return placement;
}

std::optional<Placement> HeaderReader::placement(const Schedule& schedule, int ranks, int stages,
                                                 Diagnostics* diagnostics) const {
  std::optional<Placement> placement = map("placement", ranks, stages, diagnostics);
  const int replicas = number("replicas", 2, diagnostics).value_or(1);
  const Entry* second = find(kSecondMap);
  if (replicas == 1 && second != nullptr) {
    diagnostics
        ->error(Rule::kPlacement,
                fmt::format("`{}`: expected it with `replicas: 2` only", kSecondMap),
                second->key_place)
        .help = "add `replicas: 2`, or remove the key";
  } else if (replicas == 2 && second == nullptr && !entries_.contains(kSecondMap)) {
    diagnostics
        ->error(Rule::kMissingKey, fmt::format("the header has no key `{}`", kSecondMap),
                find("replicas")->key_place)
        .help = "it has the ranks of the second replica";
  } else if (replicas == 2) {
    const std::optional<Placement> other = map(kSecondMap, ranks, stages, diagnostics);
    if (!placement || !other) return std::nullopt;
    placement = join_replicas(*placement, *other, schedule.num_microbatches, schedule.slices,
                              second->value_place, diagnostics);
  }
  const Entry* entry = find("placement");
  if (!placement || entry == nullptr) return std::nullopt;
  const auto refuse = [&](std::string message, std::string help) {
    diagnostics->error(Rule::kPlacement, std::move(message), entry->value_place).help =
        std::move(help);
    return std::nullopt;
  };
  std::vector<bool> used(static_cast<size_t>(ranks));
  for (int one = 0; one < placement->num_instances(); ++one)
    used[static_cast<size_t>(placement->rank_of_instance(one))] = true;
  if (const auto unused = std::ranges::find(used, false); unused != used.end()) {
    const auto rank = static_cast<int>(unused - used.begin());
    const bool is_beyond = std::find(unused, used.end(), true) == used.end();
    return refuse(fmt::format("the placement has no stage on rank {}", rank),
                  is_beyond ? fmt::format("set `ranks: {}`, or place a stage on each rank", rank)
                            : "place a stage on each rank");
  }
  return placement;
}

std::vector<int> HeaderReader::different_stages(std::string_view key, int stages,
                                                Diagnostics* diagnostics) const {
  const Entry* entry = find(key);
  if (entry == nullptr) return {};
  const std::optional<std::vector<int>> numbers = parse_numbers(entry->value);
  if (numbers && !numbers->empty() && are_ascending_stages(*numbers, stages)) return *numbers;
  bad_value(key, fmt::format("different stages from 0 to {} in ascending order", stages - 1),
            entry->value, entry->value_place, diagnostics);
  return {};
}

std::vector<int> HeaderReader::cut(int stages, Diagnostics* diagnostics) const {
  const Entry* entry = find("cut");
  if (entry == nullptr) return {};
  const std::optional<std::vector<int>> numbers = parse_numbers(entry->value);
  if (numbers && numbers->size() == static_cast<size_t>(stages)) return *numbers;
  bad_value("cut", fmt::format("a number of layers for each of {} stages", stages), entry->value,
            entry->value_place, diagnostics);
  return {};
}

Lowering HeaderReader::lowering(Diagnostics* diagnostics) const {
  Lowering lowering;
  for (const LoweringPolicy& policy : lowering_policies()) {
    const Entry* entry = find(policy.name);
    if (entry != nullptr && !policy.set(lowering, entry->value))
      bad_value(policy.name, values_in_words(policy), entry->value, entry->value_place,
                diagnostics);
  }
  return lowering;
}

std::optional<ParsedSchedule> HeaderReader::finish(const Place& place, size_t errors_before,
                                                   Rows rows, CellIndex cells,
                                                   Diagnostics* diagnostics) const {
  for (const HeaderKey& key : header_keys()) {
    if (key.required && !entries_.contains(key.name)) {
      diagnostics
          ->error(Rule::kMissingKey, fmt::format("the header has no key `{}`", key.name), place)
          .help = fmt::format("`{}` is {}", key.name, key.values);
    }
  }
  Schedule schedule;
  schedule.name = schedule_name(diagnostics);
  const std::optional<Level> level = this->level(diagnostics);
  const std::optional<int> ranks = number("ranks", kMaxStages, diagnostics);
  const std::optional<int> stages = number("stages", kMaxStages, diagnostics);
  schedule.num_microbatches = number("microbatches", kMaxMicrobatches, diagnostics).value_or(0);
  const int most_slices = kMaxMicrobatches / std::max(1, schedule.num_microbatches);
  schedule.slices = number("slices", most_slices, diagnostics).value_or(1);
  schedule.num_microbatches *= schedule.slices;
  if (ranks && stages)
    schedule.placement = placement(schedule, *ranks, *stages, diagnostics).value_or(Placement());
  if (stages) schedule.recompute = different_stages("recompute", *stages, diagnostics);
  if (stages) schedule.offload = different_stages("offload", *stages, diagnostics);
  if (stages) schedule.cut = cut(*stages, diagnostics);
  schedule.lowering = lowering(diagnostics);
  if (diagnostics->total() > errors_before) return std::nullopt;

  schedule.rows = std::move(rows);
  if (!check_declared_shape(schedule, *level, cells, place, diagnostics)) return std::nullopt;
  return ParsedSchedule{make_schedule(*level, std::move(schedule)), std::move(cells)};
}

}  // namespace pipewright::ir
