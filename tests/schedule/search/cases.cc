#include "tests/schedule/search/cases.h"

#include <fmt/format.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>

namespace pipewright::tests {
namespace {

using namespace schedule;

KnownCase read_case(const nlohmann::json& entry) {
  KnownCase one;
  const int ranks = entry.at("ranks"), stages = entry.at("stages");
  const std::string placement = entry.at("placement");
  Problem& problem = one.problem;
  problem.placement =
      placement == "v" ? ir::Placement::v(ranks, stages) : ir::Placement::loop(ranks, stages);
  problem.num_microbatches = entry.at("microbatches");
  problem.memory_limits.assign(static_cast<size_t>(ranks), entry.at("limit"));
  const auto at = [&](const char* key, int index) -> const nlohmann::json& {
    const nlohmann::json& list = entry.at(key);
    return list.at(list.size() == 1 ? 0 : static_cast<size_t>(index));
  };
  for (int stage = 0; stage < stages; ++stage) {
    const nlohmann::json& work = at("work", stage);
    const auto transfer = [&](int first) -> Ticks {
      const bool is_local =
          first < 0 || first + 1 >= stages ||
          problem.placement.rank_of(first) == problem.placement.rank_of(first + 1);
      return is_local ? 0 : at("transfers", first).get<Ticks>();
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
  one.bound = entry.at("bound");
  one.name = fmt::format("{}_{}_{}x{}_{}_limit_{}", entry.at("name").get<std::string>(), placement,
                         ranks, stages / ranks, problem.num_microbatches, problem.memory_limits[0]);
  return one;
}

}  // namespace

std::vector<KnownCase> read_cases(const std::string& path) {
  std::ifstream file(path);
  if (!file) throw std::runtime_error("cannot read " + path);
  std::vector<KnownCase> cases;
  for (const nlohmann::json& entry : nlohmann::json::parse(file)) cases.push_back(read_case(entry));
  return cases;
}

}  // namespace pipewright::tests
