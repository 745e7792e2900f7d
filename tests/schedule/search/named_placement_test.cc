#include <gtest/gtest.h>

#include <stdexcept>
#include <string>

#include "pipewright/schedule/search/front.h"

namespace pipewright::schedule::search {
namespace {

std::string error_of(std::string_view name, int ranks, int stages) {
  try {
    named_placement(name, ranks, stages);
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "";
}

TEST(NamedPlacement, PlacesStages) {
  EXPECT_EQ(named_placement("loop", 3, 7), ir::Placement::loop(3, 7));
  EXPECT_EQ(named_placement("v", 3, 6), ir::Placement::v(3, 6));
  EXPECT_EQ(named_placement("v", 3, 9), ir::Placement::v(3, 9));
  EXPECT_EQ(named_placement("wave", 3, 12), ir::Placement::v(3, 12));
  for (const char* name : {"loop", "v", "wave"})
    EXPECT_EQ(error_of(name, 5, 5 * default_stages_per_rank(name)), "");
}

TEST(NamedPlacement, RefusesNumbersOfStages) {
  EXPECT_EQ(error_of("loop", 8, 4),
            "placement loop: expected at least one stage per rank, got 4 stages on 8 ranks");
  const std::string v =
      "placement v: expected a multiple of the ranks, at least 2 stages per rank, got ";
  EXPECT_EQ(error_of("v", 8, 8), v + "8 stages on 8 ranks");
  EXPECT_EQ(error_of("v", 8, 20), v + "20 stages on 8 ranks");
  const std::string wave =
      "placement wave: expected an even number of stages per rank, at least 4, got ";
  EXPECT_EQ(error_of("wave", 4, 8), wave + "8 stages on 4 ranks");
  EXPECT_EQ(error_of("wave", 4, 18), wave + "18 stages on 4 ranks");
  EXPECT_EQ(error_of("wave", 4, 20), wave + "20 stages on 4 ranks");
  EXPECT_EQ(error_of("loop", 1, 16'385),
            "placement loop: expected at most 16384 stages, got 16385 stages on 1 ranks");
}

TEST(NamedPlacement, RefusesOtherNames) {
  EXPECT_EQ(error_of("spiral", 4, 4), "placement: expected loop, v or wave, got `spiral`");
  EXPECT_THROW(default_stages_per_rank("free"), std::invalid_argument);
}

}  // namespace
}  // namespace pipewright::schedule::search
