#include "pipewright/ir/placement.h"

#include <utility>

#include "pipewright/ir/action.h"
#include "pipewright/ir/check.h"

namespace pipewright::ir {

Placement::Placement(int num_ranks, std::vector<int> rank_of_stage)
    : num_ranks_(num_ranks), rank_of_stage_(std::move(rank_of_stage)) {}

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

std::vector<int> Placement::stages_of(int rank) const {
  std::vector<int> stages;
  for (int stage = 0; stage < num_stages(); ++stage) {
    if (rank_of(stage) == rank) stages.push_back(stage);
  }
  return stages;
}

std::string Placement::to_string() const {
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
