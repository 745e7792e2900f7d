#include "pipewright/ir/text/header.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <utility>
#include <vector>

#include "pipewright/ir/printable.h"
#include "pipewright/ir/text/spelling.h"

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
};

std::vector<std::string_view> all_names() {
  std::vector<std::string_view> names;
  for (const HeaderKey& key : kKeys) names.push_back(key.name);
  for (const LoweringPolicy& policy : lowering_policies()) names.push_back(policy.name);
  return names;
}

// Whether a .plan can hold the text as a value and give it back.
bool is_one_line(const std::string& text) {
  return printable(text) == text && !text.empty() && text.front() != ' ' && text.back() != ' ';
}

std::optional<int> parse_number(std::string_view text, int most) {
  int number = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || stop != text.data() + text.size() || number < 1 || number > most ||
      text.front() == '0') {
    return std::nullopt;
  }
  return number;
}

// "0 1 1 0" as numbers from 0; none for anything else.
std::optional<std::vector<int>> parse_ranks(std::string_view text) {
  std::vector<int> ranks;
  while (!text.empty()) {
    const size_t size = std::min(text.find(' '), text.size());
    int rank = 0;
    const auto [stop, error] = std::from_chars(text.data(), text.data() + size, rank);
    if (error != std::errc() || stop != text.data() + size || rank < 0) return std::nullopt;
    ranks.push_back(rank);
    text.remove_prefix(size);
    text.remove_prefix(std::min(text.find_first_not_of(' '), text.size()));
  }
  return ranks;
}

}  // namespace

std::span<const HeaderKey> header_keys() { return kKeys; }

std::string values_in_words(std::string_view values) {
  std::string words;
  while (!values.empty()) {
    const size_t size = std::min(values.find('|'), values.size());
    const std::string_view one = values.substr(0, size);
    values.remove_prefix(std::min(size + 1, values.size()));
    if (!words.empty()) words += values.empty() ? " or " : ", ";
    words += one == "N" ? "a number" : one.size() == 1 && one != "v" ? "a number from 1" : one;
  }
  return words;
}

const HeaderReader::Entry* HeaderReader::find(std::string_view key) const {
  const auto entry = entries_.find(key);
  return entry == entries_.end() || entry->second.refused ? nullptr : &entry->second;
}

void HeaderReader::set(std::string_view key, std::string_view value, const Place& key_place,
                       const Place& value_place, Diagnostics* diagnostics) {
  const std::vector<std::string_view> names = all_names();
  if (std::ranges::find(names, key) == names.end()) {
    Diagnostic& error = diagnostics->error(
        Rule::kUnknownKey, fmt::format("there is no key {}", backticked(key)), key_place);
    error.help = did_you_mean(key, names);
    if (error.help.empty()) error.help = fmt::format("keys are {}", fmt::join(names, ", "));
    return;
  }
  const auto [entry, is_new] = entries_.try_emplace(
      std::string(key), Entry{std::string(value), key_place, value_place, false});
  if (!is_new) {
    diagnostics
        ->error(Rule::kDuplicateKey, fmt::format("the key {} stands twice", backticked(key)),
                key_place)
        .notes.push_back({"it stands here first", entry->second.key_place});
  }
}

std::optional<int> HeaderReader::number(std::string_view key, int most,
                                        Diagnostics* diagnostics) const {
  const Entry* entry = find(key);
  if (entry == nullptr) return std::nullopt;
  const std::optional<int> number = parse_number(entry->value, most);
  if (!number) {
    diagnostics->error(Rule::kBadValue,
                       fmt::format("`{}` wants a number from 1 to {}, found {}", key, most,
                                   backticked(entry->value)),
                       entry->value_place);
  }
  return number;
}

std::optional<Placement> HeaderReader::placement(int ranks, int stages,
                                                 Diagnostics* diagnostics) const {
  const Entry* entry = find("placement");
  if (entry == nullptr) return std::nullopt;
  const std::string& value = entry->value;
  const auto refuse = [&](Rule rule, std::string message) {
    diagnostics->error(rule, std::move(message), entry->value_place);
    return std::nullopt;
  };
  std::optional<Placement> placement;
  if (value == "loop") {
    placement = Placement::loop(ranks, stages);
  } else if (value == "v") {
    if (stages % ranks != 0) {
      return refuse(
          Rule::kPlacement,
          fmt::format("placement `v` wants a multiple of {} stages, found {}", ranks, stages));
    }
    placement = Placement::v(ranks, stages);
  } else {
    std::optional<std::vector<int>> map = parse_ranks(value);
    if (!map || map->empty()) {
      return refuse(Rule::kBadValue,
                    fmt::format("`placement` wants `loop`, `v` or the rank of each stage, found {}",
                                backticked(value)));
    }
    if (map->size() != static_cast<size_t>(stages)) {
      return refuse(
          Rule::kPlacement,
          fmt::format("the placement names the ranks of {} stages, want {}", map->size(), stages));
    }
    for (size_t stage = 0; stage < map->size(); ++stage) {
      if ((*map)[stage] >= ranks) {
        return refuse(Rule::kPlacement,
                      fmt::format("the placement has stage {} on rank {}, but there are {} ranks",
                                  stage, (*map)[stage], ranks));
      }
    }
    placement = Placement::custom(ranks, std::move(*map));
  }
  std::vector<bool> used(static_cast<size_t>(ranks));
  for (int stage = 0; stage < stages; ++stage)
    used[static_cast<size_t>(placement->rank_of(stage))] = true;
  if (const auto unused = std::ranges::find(used, false); unused != used.end()) {
    return refuse(Rule::kPlacement,
                  fmt::format("the placement has no stage on rank {}", unused - used.begin()));
  }
  return placement;
}

std::optional<HeaderReader::Result> HeaderReader::finish(const Place& place,
                                                         Diagnostics* diagnostics) const {
  const size_t before = diagnostics->total();
  for (const HeaderKey& key : kKeys) {
    if (key.required && !entries_.contains(key.name)) {
      diagnostics->error(Rule::kMissingKey, fmt::format("the header has no `{}`", key.name), place)
          .help = fmt::format("`{}` is {}", key.name, values_in_words(key.values));
    }
  }
  Result result{};
  if (const Entry* entry = find("name"); entry != nullptr) {
    result.schedule.name = entry->value;
    if (!is_one_line(result.schedule.name)) {
      diagnostics->error(
          Rule::kBadValue,
          fmt::format("`name` wants one line of text without blanks around it, found {}",
                      backticked(result.schedule.name)),
          entry->value_place);
    }
  }
  if (const Entry* entry = find("level"); entry != nullptr) {
    const std::optional<Level> level = parse_level(entry->value);
    if (!level) {
      diagnostics->error(
          Rule::kBadValue,
          fmt::format("`level` wants {}, found {}", values_in_words("compute_only|compute_comms"),
                      backticked(entry->value)),
          entry->value_place);
    }
    result.level = level.value_or(Level::kComputeOnly);
  }
  const std::optional<int> ranks = number("ranks", kMaxStages, diagnostics);
  const std::optional<int> stages = number("stages", kMaxStages, diagnostics);
  result.schedule.num_microbatches =
      number("microbatches", kMaxMicrobatches, diagnostics).value_or(0);
  if (ranks && stages)
    result.schedule.placement = placement(*ranks, *stages, diagnostics).value_or(Placement());
  for (const LoweringPolicy& policy : lowering_policies()) {
    const Entry* entry = find(policy.name);
    if (entry == nullptr || policy.set(result.schedule.lowering, entry->value)) continue;
    diagnostics->error(Rule::kBadValue,
                       fmt::format("`{}` wants {}, found {}", policy.name,
                                   values_in_words(policy.values), backticked(entry->value)),
                       entry->value_place);
  }
  if (diagnostics->total() > before) return std::nullopt;
  return result;
}

}  // namespace pipewright::ir
