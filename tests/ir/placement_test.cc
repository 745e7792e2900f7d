#include "pipewright/ir/placement.h"

#include <gtest/gtest.h>

#include "pipewright/ir/check.h"

namespace pipewright::ir {
namespace {

std::vector<int> ranks_of(const Placement& placement) {
  std::vector<int> ranks;
  for (int stage = 0; stage < placement.num_stages(); ++stage)
    ranks.push_back(placement.rank_of(stage));
  return ranks;
}

// The cases of PyTorch's test_generate_stage_to_rank_mapping.
TEST(PlacementTest, LoopMatchesPyTorch) {
  EXPECT_EQ(ranks_of(Placement::loop(2, 2)), (std::vector<int>{0, 1}));
  EXPECT_EQ(ranks_of(Placement::loop(2, 4)), (std::vector<int>{0, 1, 0, 1}));
  EXPECT_EQ(ranks_of(Placement::loop(4, 8)), (std::vector<int>{0, 1, 2, 3, 0, 1, 2, 3}));
}

TEST(PlacementTest, VMatchesPyTorch) {
  EXPECT_EQ(ranks_of(Placement::v(2, 4)), (std::vector<int>{0, 1, 1, 0}));
  EXPECT_EQ(ranks_of(Placement::v(4, 12)), (std::vector<int>{0, 1, 2, 3, 3, 2, 1, 0, 0, 1, 2, 3}));
  EXPECT_EQ(ranks_of(Placement::v(4, 16)),
            (std::vector<int>{0, 1, 2, 3, 3, 2, 1, 0, 0, 1, 2, 3, 3, 2, 1, 0}));
  EXPECT_THROW(Placement::v(4, 10), InternalError);
}

TEST(PlacementTest, StagesOfARankAscend) {
  EXPECT_EQ(Placement::v(4, 8).stages_of(1), (std::vector<int>{1, 6}));
  EXPECT_EQ(Placement::custom(2, {0, 0, 1, 1, 0}).stages_of(0), (std::vector<int>{0, 1, 4}));
}

// Microbatches 0 to 3 run on stages 0 to 3 of ranks 0 to 3, the others the other way round.
TEST(PlacementTest, TwoReplicas) {
  const Placement back = Placement::custom(4, {3, 2, 1, 0});
  const Placement both = Placement::replicas(Placement::loop(4, 4), back, 4);
  EXPECT_EQ(both.num_stages(), 4);
  EXPECT_EQ(both.num_replicas(), 2);
  EXPECT_EQ(both.rank_of(1, 3), 1);
  EXPECT_EQ(both.rank_of(1, 4), 2);
  EXPECT_THROW(both.rank_of(1), InternalError);
  EXPECT_EQ(both.stages_of(3), (std::vector<int>{3, 0}));
  EXPECT_EQ(both.ranks_of(1), (std::vector<int>{1, 2}));
  EXPECT_EQ(Placement::loop(4, 4).ranks_of(1), (std::vector<int>{1}));
  EXPECT_EQ(both.replica(0), Placement::loop(4, 4));
  EXPECT_EQ(both.replica(1), back);
  EXPECT_EQ(both.instance_on(1, 1), 1);
  EXPECT_EQ(both.instance_on(2, 1), 5);
  EXPECT_EQ(both.microbatch_of_instance(5), 4);
  EXPECT_EQ(both.microbatches_of_instance(1, 9), 4);
  EXPECT_EQ(both.microbatches_of_instance(5, 9), 5);
  EXPECT_NE(both, Placement::loop(4, 4));
  EXPECT_THROW(Placement::replicas(Placement::loop(4, 4), Placement::loop(4, 4), 4), InternalError);
  EXPECT_THROW(Placement::replicas(Placement::loop(4, 4), Placement::loop(4, 8), 4), InternalError);
}

TEST(PlacementTest, PrintsAsItsPattern) {
  EXPECT_EQ(Placement::custom(2, {0, 1, 0, 1}).to_string(), "loop");
  EXPECT_EQ(Placement::custom(2, {0, 1, 1, 0}).to_string(), "v");
  EXPECT_EQ(Placement::custom(2, {0, 0, 1, 1, 0}).to_string(), "0 0 1 1 0");
  EXPECT_EQ(Placement::loop(1, 2).to_string(), "loop");  // both patterns are the same map
}

}  // namespace
}  // namespace pipewright::ir
