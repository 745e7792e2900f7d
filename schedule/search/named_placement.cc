#include "pipewright/schedule/search/named_placement.h"

#include <fmt/format.h>

#include <stdexcept>

#include "pipewright/ir/diagnostic.h"
#include "pipewright/schedule/search/words.h"

namespace pipewright::schedule::search {
namespace {

struct Family {
  std::string_view name;
  int default_per_rank;
  int least_per_rank, multiple_per_rank;  // multiple 0: any number of stages
  std::string_view expected;
};
constexpr Family kFamilies[] = {
    {"loop", 1, 1, 0, "at least one stage per rank"},
    {"v", 2, 2, 1, "a multiple of the ranks, at least 2 stages per rank"},
    {"wave", 4, 4, 2, "an even number of stages per rank, at least 4"},
};

const Family& family_of(std::string_view name) {
  for (const Family& family : kFamilies) {
    if (family.name == name) return family;
  }
  throw std::invalid_argument(
      fmt::format("placement: expected loop, v or wave, got {}", ir::backticked(name)));
}

}  // namespace

int default_stages_per_rank(std::string_view name) { return family_of(name).default_per_rank; }

ir::Placement named_placement(std::string_view name, int ranks, int stages) {
  const Family& family = family_of(name);
  const auto refuse = [&](std::string_view expected) {
    throw std::invalid_argument(fmt::format("placement {}: expected {}, got {} stages on {} ranks",
                                            name, expected, stages, ranks));
  };
  if (stages > kMaxSearchStages) refuse(fmt::format("at most {} stages", kMaxSearchStages));
  const int per_rank = stages / ranks;
  if (per_rank < family.least_per_rank ||
      (family.multiple_per_rank > 0 &&
       (stages % ranks != 0 || per_rank % family.multiple_per_rank != 0)))
    refuse(family.expected);
  return family.multiple_per_rank > 0 ? ir::Placement::v(ranks, stages)
                                      : ir::Placement::loop(ranks, stages);
}

}  // namespace pipewright::schedule::search
