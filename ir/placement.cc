#include "pipewright/ir/placement.h"

#include <algorithm>
#include <utility>

#include "pipewright/ir/action.h"
#include "pipewright/ir/check.h"

namespace pipewright::ir {

Placement::Placement(int num_ranks, std::vector<int> rank_of_stage)
    : num_ranks_(num_ranks),
      numbers_{.num_stages = static_cast<int>(rank_of_stage.size())},
      rank_of_stage_(std::move(rank_of_stage)) {}

Placement Placement::loop(int num_ranks, int num_stages) {
  PW_CHECK(num_ranks >= 1 && num_stages >= 1 && num_stages <= kMaxStages,
           "a placement needs at least one rank and one stage");
  std::vector<int> ranks(static_cast<size_t>(num_stages));
  for (int stage = 0; stage < num_stages; ++stage)
    ranks[static_cast<size_t>(stage)] = stage % num_ranks;
  return {num_ranks, std::move(ranks)};
}

Placement Placement::v(int num_ranks, int num_stages) {
  PW_CHECK(num_ranks >= 1 && num_stages >= 1 && num_stages <= kMaxStages,
           "a placement needs at least one rank and one stage");
  PW_CHECK(num_stages % num_ranks == 0, "a v placement needs a multiple of num_ranks stages");
  std::vector<int> ranks(static_cast<size_t>(num_stages));
  for (int stage = 0; stage < num_stages; ++stage) {
    const int step = stage % num_ranks;
    const bool forth = stage / num_ranks % 2 == 0;
    ranks[static_cast<size_t>(stage)] = forth ? step : num_ranks - 1 - step;
  }
  return {num_ranks, std::move(ranks)};
}

Placement Placement::custom(int num_ranks, std::vector<int> rank_of_stage) {
  PW_CHECK(num_ranks >= 1 && !rank_of_stage.empty() && rank_of_stage.size() <= kMaxStages,
           "a placement needs at least one rank and one stage");
  for (const int rank : rank_of_stage)
    PW_CHECK(rank >= 0 && rank < num_ranks, "a stage is placed on a rank that does not exist");
  return {num_ranks, std::move(rank_of_stage)};
}

Placement Placement::replicas(const Placement& first, const Placement& second, int second_from) {
  PW_CHECK(first.num_replicas() == 1 && second.num_replicas() == 1 &&
               first.num_ranks_ == second.num_ranks_ && first.num_stages() == second.num_stages(),
           "both replicas have the same ranks and stages");
  PW_CHECK(second_from >= 1 && second_from < InstanceNumbers::kNoSecond,
           "replica 0 has at least one microbatch");
  for (int stage = 0; stage < first.num_stages(); ++stage)
    PW_CHECK(first.rank_of(stage) != second.rank_of(stage), "no rank holds one stage twice");
  Placement both = first;
  both.numbers_.second_from = second_from;
  both.rank_of_stage_.insert(both.rank_of_stage_.end(), second.rank_of_stage_.begin(),
                             second.rank_of_stage_.end());
  return both;
}

Placement Placement::both_ways(const Placement& first, int second_from) {
  std::vector<int> back = first.rank_of_stage_;
  for (int& rank : back) rank = first.num_ranks_ - 1 - rank;
  return replicas(first, custom(first.num_ranks_, std::move(back)), second_from);
}

std::vector<int> Placement::ranks_of(int stage) const {
  std::vector<int> ranks;
  for (int instance = stage; instance < num_instances(); instance += num_stages())
    ranks.push_back(rank_of_instance(instance));
  return ranks;
}

std::vector<int> Placement::instances_of(int rank) const {
  std::vector<int> instances;
  for (int instance = 0; instance < num_instances(); ++instance) {
    if (rank_of_instance(instance) == rank) instances.push_back(instance);
  }
  return instances;
}

std::vector<int> Placement::stages_of(int rank) const {
  std::vector<int> stages = instances_of(rank);
  for (int& one : stages) one = stage_of_instance(one);
  return stages;
}

int Placement::microbatches_of_instance(int instance, int num_microbatches) const {
  const int before = std::min(numbers_.second_from, num_microbatches);
  return instance < num_stages() ? before : num_microbatches - before;
}

Placement Placement::replica(int index) const {
  const auto begin = rank_of_stage_.begin() + index * num_stages();
  return {num_ranks_, std::vector<int>(begin, begin + num_stages())};
}

std::string Placement::to_string() const {
  if (num_replicas() > 1) return replica(0).to_string();
  if (num_stages() == 0) return "";
  if (*this == loop(num_ranks_, num_stages())) return "loop";
  if (num_stages() % num_ranks_ == 0 && *this == v(num_ranks_, num_stages())) return "v";
  std::string text;
  for (const int rank : rank_of_stage_) {
    if (!text.empty()) text += ' ';
    text += std::to_string(rank);
  }
  return text;
}

}  // namespace pipewright::ir
