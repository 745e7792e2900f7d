#include "tests/schedule/search/cases.h"

#include <fmt/format.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <stdexcept>

namespace pipewright::tests {
namespace {

using namespace schedule;

void require(bool condition, const std::string& message) {
  if (!condition) throw std::runtime_error(message);
}

// Throws if the object has other fields than these, or lacks one.
void require_fields(const nlohmann::json& object, const std::set<std::string>& fields) {
  for (const auto& [key, value] : object.items())
    require(fields.contains(key), fmt::format("unknown field `{}` in {}", key, object.dump()));
  for (const std::string& field : fields)
    require(object.contains(field), fmt::format("missing field `{}` in {}", field, object.dump()));
}

// The fields of a problem, and those that say what is known of its cost.
void require_case_fields(const nlohmann::json& entry, std::set<std::string> known) {
  known.merge(std::set<std::string>{"name", "placement", "ranks", "stages", "microbatches", "work",
                                    "transfers", "activation", "weight_input", "limit", "cost"});
  require_fields(entry, known);
}

// The entry of a list with one for all or one for each of `count`.
const nlohmann::json& entry_of(const nlohmann::json& list, int count, int index) {
  const auto size = static_cast<size_t>(count);
  require(list.size() == 1 || list.size() == size,
          fmt::format("expected 1 or {} entries, got {}", count, list.dump()));
  return list.at(list.size() == 1 ? 0 : static_cast<size_t>(index));
}

ir::Placement placement_of(const std::string& name, int ranks, int stages) {
  require(name == "v" || name == "loop", "expected placement v or loop, got " + name);
  return name == "v" ? ir::Placement::v(ranks, stages) : ir::Placement::loop(ranks, stages);
}

// All but `bound`.
KnownCase read_case(const nlohmann::json& entry) {
  KnownCase one;
  const int ranks = entry.at("ranks"), stages = entry.at("stages");
  const std::string placement = entry.at("placement");
  Problem& problem = one.problem;
  problem.placement = placement_of(placement, ranks, stages);
  problem.num_microbatches = entry.at("microbatches");
  problem.memory_limits.assign(static_cast<size_t>(ranks), entry.at("limit"));
  for (int stage = 0; stage < stages; ++stage) {
    const nlohmann::json& work = entry_of(entry.at("work"), stages, stage);
    require(work.size() == 3, "expected F, I and W, got " + work.dump());
    const auto transfer = [&](int first) -> Ticks {
      const bool is_local =
          first < 0 || first + 1 >= stages ||
          problem.placement.rank_of(first) == problem.placement.rank_of(first + 1);
      return is_local ? 0 : entry_of(entry.at("transfers"), stages - 1, first).get<Ticks>();
    };
    problem.stages.push_back({.forward = work.at(0),
                              .backward_input = work.at(1),
                              .backward_weight = work.at(2),
                              .output_transfer = transfer(stage),
                              .gradient_transfer = transfer(stage - 1),
                              .activation = entry.at("activation"),
                              .weight_input = entry.at("weight_input")});
  }
  one.cost = entry.at("cost");
  one.name = fmt::format("{}_{}_{}x{}_{}_limit_{}", entry.at("name").get<std::string>(), placement,
                         ranks, stages / ranks, problem.num_microbatches, problem.memory_limits[0]);
  return one;
}

KnownCase read_exact_optimum(const nlohmann::json& entry) {
  if (entry.value("proved", true)) {
    require_case_fields(entry, {"proved"});
    KnownCase one = read_case(entry);
    one.bound = one.cost;
    return one;
  }
  require_case_fields(entry, {"proved", "proved_bound"});
  KnownCase one = read_case(entry);
  one.bound = entry.at("proved_bound");
  require(one.bound < one.cost, one.name + ": expected proved_bound to be less than cost");
  return one;
}

KnownCase read_known_cost(const nlohmann::json& entry) {
  require_case_fields(entry, {"bound"});
  KnownCase one = read_case(entry);
  one.bound = entry.at("bound");
  require(one.bound <= one.cost, one.name + ": expected bound to be at most cost");
  return one;
}

std::vector<KnownCase> read_cases(const std::string& path,
                                  KnownCase (*read)(const nlohmann::json& entry)) {
  std::ifstream file(path);
  require(file.is_open(), "cannot read " + path);
  const nlohmann::json content = nlohmann::json::parse(file);
  require_fields(content, {"about", "cases"});
  std::vector<KnownCase> cases;
  for (const nlohmann::json& entry : content.at("cases")) cases.push_back(read(entry));
  return cases;
}

}  // namespace

std::vector<KnownCase> read_exact_optima(const std::string& path) {
  return read_cases(path, read_exact_optimum);
}

std::vector<KnownCase> read_known_costs(const std::string& path) {
  return read_cases(path, read_known_cost);
}

}  // namespace pipewright::tests
