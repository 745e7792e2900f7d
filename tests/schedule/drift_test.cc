// What a drift report says of the transfers of a recording of which every time is known.
#include "pipewright/schedule/simulate/drift.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "pipewright/ir/text/action_text.h"

namespace pipewright::schedule {
namespace {

using K = ir::ActionKind;
using Times = std::vector<std::vector<ir::Interval>>;

// Rank 0 computes and sends 3 microbatches, which rank 1 receives in advance and computes.
ir::Program program() {
  ir::Program program;
  program.placement = ir::Placement::loop(2, 2);
  program.num_microbatches = 3;
  program.rows = {{{K::kForward, 0, 0},
                   {K::kSendF, 0, 0},
                   {K::kForward, 0, 1},
                   {K::kSendF, 0, 1},
                   {K::kForward, 0, 2},
                   {K::kSendF, 0, 2}},
                  {{K::kRecvF, 1, 0},
                   {K::kRecvF, 1, 1},
                   {K::kRecvF, 1, 2},
                   {K::kForward, 1, 0},
                   {K::kForward, 1, 1},
                   {K::kForward, 1, 2}}};
  return program;
}

ir::Timeline timeline_of(const Times& times) {
  ir::Timeline timeline(program().rows);
  for (size_t rank = 0; rank < times.size(); ++rank) {
    for (size_t step = 0; step < times[rank].size(); ++step)
      timeline.at(rank, step) = times[rank][step];
  }
  return timeline;
}

// F takes 1 and a transfer 0.25, on an idle machine.
const Times kPredicted = {
    {{0, 1}, {1, 1.25}, {1, 2}, {2, 2.25}, {2, 3}, {3, 3.25}},
    {{1, 1.25}, {2, 2.25}, {3, 3.25}, {1.25, 2.25}, {2.25, 3.25}, {3.25, 4.25}}};

Drift drift(const Times& measured, Baseline baseline = Baseline::kPredicted,
            const Times& predicted = kPredicted) {
  return drift_of(program(), timeline_of(predicted), timeline_of(measured), baseline);
}

const Drift::Group& link(const Drift& drift) {
  for (const Drift::Group& group : drift.groups)
    if (group.kind == K::kSendF) return group;
  throw std::out_of_range("no group of SENDs");
}

// "1F0 +6.5", in order.
std::vector<std::string> outliers(const Drift& drift) {
  std::vector<std::string> all;
  for (const Drift::Outlier& one : drift.outliers) {
    const double difference = one.measured - one.predicted;
    all.push_back(
        ir::to_string(
            program().rows[static_cast<size_t>(one.rank)][static_cast<size_t>(one.step)]) +
        (difference < 0 ? " " : " +") + std::to_string(difference).substr(0, 5));
  }
  return all;
}

// Each tensor is 2 under way, instead of 0.25; rank 1 waits for all of them.
TEST(Drift, ASlowLinkIsNamed) {
  const Times measured = {{{0, 1}, {1, 3}, {1, 2}, {2, 5}, {2, 3}, {3, 7}},
                          {{1, 3}, {2, 5}, {3, 7}, {3, 4}, {5, 6}, {7, 8}}};
  const Drift found = drift(measured);
  ASSERT_EQ(found.slow_links.size(), 1u);
  EXPECT_EQ(found.slow_links[0].kind, K::kSendF);
  EXPECT_EQ(found.slow_links[0].rank, 0);
  EXPECT_EQ(found.slow_links[0].to, 1);
  EXPECT_EQ(found.slow_links[0].measured, 2);
  // As predicted, none is, nor if nothing was predicted of links.
  EXPECT_TRUE(drift(kPredicted).slow_links.empty());
  Times instant = measured;
  for (size_t send = 1; send < 6; send += 2) instant[0][send].end = instant[0][send].start;
  EXPECT_TRUE(drift(measured, Baseline::kPredicted, instant).slow_links.empty());
}

// A link that is 1.5 times as slow as predicted, and yet costs less than 1% of the makespan.
TEST(Drift, ALinkThatCostsNothingIsNotSlow) {
  Times measured = kPredicted;
  Times predicted = kPredicted;
  for (size_t send = 1; send < 6; send += 2) {
    predicted[0][send].end = predicted[0][send].start + 0.001;
    measured[0][send].end = measured[0][send].start + 0.01;
    measured[1][send / 2].end = predicted[1][send / 2].end = measured[0][send].end;
  }
  EXPECT_TRUE(drift(measured, Baseline::kPredicted, predicted).slow_links.empty());
}

// Rank 1 waits for its first tensor, for 0.5. Then it is busy until 9.5 and 10.5, so its other
// tensors, which it sees there, tell nothing of the link.
TEST(Drift, ABusyReceiverIsNoSlowLink) {
  const Times measured = {{{0, 1}, {1, 1.5}, {1, 2}, {2, 9.5}, {2, 3}, {3, 10.5}},
                          {{1, 1.5}, {2, 9.5}, {3, 10.5}, {1.5, 9.5}, {9.5, 10.5}, {10.5, 11.5}}};
  const Drift found = drift(measured);
  EXPECT_EQ(link(found).predicted, 0.25);
  EXPECT_EQ(link(found).measured, 0.5);
  EXPECT_FALSE(link(found).measured_is_bound);
  EXPECT_EQ(outliers(found), (std::vector<std::string>{"1F0 +7.000", "0SEND_F0 +0.250"}));
}

// Rank 1 begins its step at 6 and finds all tensors there: each took at most as long as it waited
// to be seen, the last one 5.
TEST(Drift, TransfersThatNobodyWaitsForOnlyHaveABound) {
  const Times measured = {{{0, 1}, {1, 6}, {1, 2}, {2, 7}, {2, 3}, {3, 8}},
                          {{6, 6}, {6, 7}, {6, 8}, {6, 7}, {7, 8}, {8, 9}}};
  const Drift found = drift(measured);
  EXPECT_EQ(link(found).measured, 5);
  EXPECT_TRUE(link(found).measured_is_bound);
  EXPECT_FALSE(link(found).predicted_is_bound);
  EXPECT_EQ(outliers(found), std::vector<std::string>());
  // Also of the run before, if that is a recording.
  const Drift later = drift(kPredicted, Baseline::kEarlierRun, measured);
  EXPECT_EQ(link(later).predicted, 5);
  EXPECT_TRUE(link(later).predicted_is_bound);
  EXPECT_EQ(link(later).measured, 0.25);
  EXPECT_FALSE(link(later).measured_is_bound);
}

// Rank 0 posts all SENDs by 3, and one arrives every 4: no transfer takes longer than 4, though the
// last one is under way for 10.
TEST(Drift, ATransferBehindOthersTakesNoLongerThanThem) {
  const Times measured = {{{0, 1}, {1, 5}, {1, 2}, {2, 9}, {2, 3}, {3, 13}},
                          {{1, 5}, {2, 9}, {3, 13}, {5, 6}, {9, 10}, {13, 14}}};
  const Drift found = drift(measured);
  EXPECT_EQ(link(found).measured, 4);
  EXPECT_FALSE(link(found).measured_is_bound);
  EXPECT_EQ(outliers(found),
            (std::vector<std::string>{"0SEND_F0 +3.750", "0SEND_F1 +3.750", "0SEND_F2 +3.750"}));
}

// The link of the second transfer was down for 20.
TEST(Drift, ATransferThatWasHeldUpIsAmongTheLargestDifferences) {
  const Times measured = {
      {{0, 1}, {1, 1.25}, {1, 2}, {2, 22.25}, {2, 3}, {3, 23.25}},
      {{1, 1.25}, {2, 22.25}, {3, 23.25}, {1.25, 2.25}, {22.25, 23.25}, {23.25, 24.25}}};
  const Drift found = drift(measured);
  EXPECT_EQ(link(found).measured, 0.25);
  EXPECT_EQ(outliers(found), std::vector<std::string>{"0SEND_F1 +20.00"});
}

}  // namespace
}  // namespace pipewright::schedule
