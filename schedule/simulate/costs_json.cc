#include "pipewright/schedule/simulate/costs_json.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <nlohmann/json.hpp>
#include <set>
#include <vector>

#include "pipewright/ir/diagnostic.h"
#include "pipewright/ir/text/spelling.h"

namespace pipewright::schedule {
namespace {

using Json = nlohmann::json;

struct CostsError {
  std::string message;
};

[[noreturn]] void fail(std::string message) { throw CostsError{std::move(message)}; }

std::string shown(const Json& value) {
  std::string text = value.dump(-1, ' ', true, Json::error_handler_t::replace);
  if (text.size() > 40) text = text.substr(0, 37) + "...";
  return text;
}

double number(std::string_view key, const Json& value) {
  if (!value.is_number() || !is_cost(value.get<double>()))
    fail(fmt::format("`{}` wants 0, or numbers from {} to {}, found {}", key, kLeastCost, kMostCost,
                     shown(value)));
  return value.get<double>();
}

std::vector<double> numbers(std::string_view key, const Json& value) {
  if (!value.is_array() || value.empty())
    fail(fmt::format("`{}` wants a list of numbers, found {}", key, shown(value)));
  std::vector<double> all;
  for (const Json& one : value) all.push_back(number(key, one));
  return all;
}

double bandwidth(const Json& value) {
  const double bytes = number("bandwidth", value);
  if (bytes == 0) fail("`bandwidth` wants bytes a unit of time, more than 0, found 0");
  return bytes;
}

void refuse_unknown(std::string_view key, std::span<const std::string_view> known,
                    std::string_view where) {
  const std::string hint = ir::did_you_mean(key, known);
  fail(fmt::format("there is no key {}{}; {}", ir::backticked(key), where,
                   hint.empty() ? fmt::format("keys are {}", fmt::join(known, ", ")) : hint));
}

int rank(std::string_view key, const Json& value) {
  if (!value.is_number_unsigned() || value.get<uint64_t>() >= ir::kMaxStages)
    fail(fmt::format("`{}` of a link wants a rank, found {}", key, shown(value)));
  return value.get<int>();
}

void read_link(const Json& value, Costs* costs) {
  constexpr std::string_view kKeys[] = {"from", "to", "latency", "bandwidth"};
  if (!value.is_object() || !value.contains("from") || !value.contains("to"))
    fail(fmt::format("`links` wants objects with `from` and `to`, found {}", shown(value)));
  Link link = costs->link;
  for (const auto& [key, item] : value.items()) {
    if (key == "latency") {
      link.latency = number(key, item);
    } else if (key == "bandwidth") {
      link.bandwidth = bandwidth(item);
    } else if (key != "from" && key != "to") {
      refuse_unknown(key, kKeys, " in a link");
    }
  }
  const std::pair ranks(rank("from", value["from"]), rank("to", value["to"]));
  if (!costs->links.emplace(ranks, link).second)
    fail(fmt::format("`links` has two from rank {} to rank {}", ranks.first, ranks.second));
}

Costs read(const Json& json) {
  if (!json.is_object()) fail(fmt::format("costs are an object, found {}", shown(json)));
  if (!json.contains("version") || json["version"] != 1)
    fail(json.contains("version")
             ? fmt::format("`version` wants 1, found {}", shown(json["version"]))
             : std::string("`version` is missing; this is version 1"));
  std::vector<std::string_view> known = {"version", "unit",      "rank_scale", "microbatch_scale",
                                         "latency", "bandwidth", "links"};
  for (const StageCost& field : stage_costs()) known.push_back(field.name);

  Costs costs;
  for (const auto& [key, value] : json.items()) {
    const auto field = std::ranges::find(stage_costs(), key, &StageCost::name);
    if (field != stage_costs().end()) {
      costs.*(field->values) =
          value.is_array() ? PerStage(numbers(key, value)) : PerStage(number(key, value));
    } else if (key == "unit") {
      const auto is_letter = [](unsigned char c) { return std::isalpha(c) != 0; };
      if (!value.is_string() || value.get<std::string>().empty() ||
          value.get<std::string>().size() > 16 ||
          !std::ranges::all_of(value.get<std::string>(), is_letter))
        fail(fmt::format("`unit` wants a word of up to 16 letters, found {}", shown(value)));
      costs.unit = value.get<std::string>();
    } else if (key == "rank_scale") {
      costs.rank_scale = numbers(key, value);
    } else if (key == "microbatch_scale") {
      costs.microbatch_scale = numbers(key, value);
    } else if (key == "latency") {
      costs.link.latency = number(key, value);
    } else if (key == "bandwidth") {
      costs.link.bandwidth = bandwidth(value);
    } else if (key == "links") {
      if (!value.is_array()) fail(fmt::format("`links` wants a list, found {}", shown(value)));
    } else if (key != "version") {
      refuse_unknown(key, known, "");
    }
  }
  // Last: what a link does not say is as everywhere.
  if (json.contains("links")) {
    for (const Json& link : json["links"]) read_link(link, &costs);
  }
  return costs;
}

}  // namespace

std::variant<Costs, std::string> parse_costs(std::string_view text) {
  // The parser keeps the last of two equal keys, without a word.
  std::vector<std::set<std::string>> keys;
  std::string repeated;
  const auto watch = [&](int depth, Json::parse_event_t event, Json& value) {
    if (depth > 4) fail("no value is nested so deep");
    if (event == Json::parse_event_t::object_start) keys.emplace_back();
    if (event == Json::parse_event_t::object_end) keys.pop_back();
    if (event == Json::parse_event_t::key && !keys.back().insert(value.get<std::string>()).second)
      repeated = value.get<std::string>();
    return true;
  };
  try {
    const Json json = Json::parse(text, watch);
    if (!repeated.empty()) return fmt::format("the key {} stands twice", ir::backticked(repeated));
    return read(json);
  } catch (const CostsError& error) {
    return error.message;
  } catch (const Json::parse_error& error) {
    const auto offset = std::min(error.byte, text.size());
    const auto line =
        1 + std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(offset), '\n');
    return fmt::format("line {} is not JSON", line);
  } catch (const Json::out_of_range&) {
    return "a number is too large";
  }
}

}  // namespace pipewright::schedule
