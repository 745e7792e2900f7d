#include "pipewright/ir/channel.h"

#include <gtest/gtest.h>

namespace pipewright::ir {
namespace {

// Two operations of a rank share a queue if and only if the definition of the model says so.
TEST(ChannelTest, QueuesAreSharedAsTheModelDefines) {
  constexpr uint32_t kRanks = 5;
  for (const ChannelModelInfo& row : channel_models()) {
    for (uint32_t peer = 0; peer < kRanks; ++peer) {
      for (uint32_t other = 0; other < kRanks; ++other) {
        for (const bool send : {false, true}) {
          for (const bool other_send : {false, true}) {
            const bool same =
                row.model == ChannelModel::kRank ||
                (peer == other && (row.model == ChannelModel::kPeer || send == other_send));
            const uint32_t queue = queue_index(row.model, peer, send);
            EXPECT_EQ(queue == queue_index(row.model, other, other_send), same) << row.name;
            EXPECT_LT(queue, queues_per_rank(row.model, kRanks)) << row.name;
          }
        }
      }
    }
  }
}

TEST(ChannelTest, CapacityRoundTripsThroughText) {
  EXPECT_EQ(parse_capacity("0"), 0u);
  EXPECT_EQ(parse_capacity("17"), 17u);
  EXPECT_EQ(parse_capacity("inf"), kUnboundedCapacity);
  for (const char* bad : {"", "-1", "1x", "x", "Inf", "4294967295", "4294967296"})
    EXPECT_FALSE(parse_capacity(bad)) << bad;
  EXPECT_EQ(to_string_capacity(kUnboundedCapacity), "inf");
  EXPECT_EQ(to_string_capacity(3), "3");
  EXPECT_EQ(describe_channels(ChannelModel::kPeer, 3), "channels peer, capacity 3");
}

}  // namespace
}  // namespace pipewright::ir
