// RECVs as late as possible: the verifier accepts the result, and no RECV can move later.
#include <gtest/gtest.h>

#include <algorithm>

#include "pipewright/ir/text/action_text.h"
#include "pipewright/ir/text/render.h"
#include "pipewright/schedule/lowering/lower.h"
#include "pipewright/schedule/lowering/place_receives.h"
#include "pipewright/schedule/verify/verify.h"
#include "pipewright/schedules/registry.h"

namespace pipewright::schedule {
namespace {

struct Channels {
  ir::ChannelModel model;
  ir::ChannelCapacity capacity;
};

std::vector<Channels> all_channels() {
  std::vector<Channels> all;
  for (const ir::ChannelModelInfo& model : ir::channel_models()) {
    for (const ir::ChannelCapacity capacity : {0u, 1u, 2u, ir::kUnboundedCapacity})
      all.push_back({model.model, capacity});
  }
  return all;
}

ir::Program lower_latest(const ir::ComputeOrder& order, const Channels& channels,
                         ir::Lowering policies = {}) {
  policies.receives = ir::Receives::kLatest;
  policies.channels = channels.model;
  policies.capacity = channels.capacity;
  ir::Diagnostics diagnostics;
  auto program = lower(order, policies, &diagnostics);
  EXPECT_TRUE(program) << ir::render(diagnostics, nullptr, {});
  return std::move(*program);
}

bool is_receive(const ir::Action& action) { return ir::is_receive(action.kind()); }

// The program with one RECV moved one position later: past the adjacent RECVs and one more action.
ir::Program with_one_later(ir::Program program, size_t rank, size_t step) {
  ir::Row& row = program.rows[rank];
  const auto begin = row.begin() + static_cast<std::ptrdiff_t>(step);
  const auto next = std::find_if_not(begin, row.end(), is_receive);
  EXPECT_NE(next, row.end());
  std::rotate(begin, begin + 1, next + 1);
  return program;
}

// How many RECVs of a valid program could be posted later.
int count_early(const ir::Program& program, const Channels& channels) {
  const VerifyOptions options{channels.model, channels.capacity, false};
  int early = 0;
  for (size_t rank = 0; rank < program.rows.size(); ++rank) {
    for (size_t step = 0; step < program.rows[rank].size(); ++step) {
      if (!is_receive(program.rows[rank][step])) continue;
      ir::Diagnostics diagnostics;
      early += verify(with_one_later(program, rank, step), options, &diagnostics);
    }
  }
  return early;
}

class LatestReceivesTest : public testing::TestWithParam<const schedules::ScheduleSpec*> {};

TEST_P(LatestReceivesTest, AreVerifiedAndNoneCanMoveLater) {
  int programs = 0, early_in_pytorchs = 0;
  for (const int ranks : {2, 3, 4}) {
    for (const int microbatches : {4, 6, 8}) {
      const schedules::Shape shape{ranks, schedules::default_stages(*GetParam(), ranks),
                                   microbatches};
      if (schedules::shape_error(*GetParam(), shape)) continue;
      const ir::ComputeOrder order = schedules::make_order(*GetParam(), shape);
      ir::Diagnostics diagnostics;
      const auto pytorchs = lower(order, {}, &diagnostics);
      for (const Channels& channels : all_channels()) {
        SCOPED_TRACE(testing::Message()
                     << "P=" << ranks << " M=" << microbatches << " "
                     << ir::describe_channels(channels.model, channels.capacity));
        const ir::Program program = lower_latest(order, channels);
        ASSERT_TRUE(verify(program, {channels.model, channels.capacity, false}, &diagnostics))
            << ir::render(diagnostics, nullptr, {});
        EXPECT_EQ(count_early(program, channels), 0);
        early_in_pytorchs += count_early(*pytorchs, channels);
        ++programs;
      }
    }
  }
  EXPECT_GE(programs, 12);
  // PyTorch's RECVs are early, except in GPipe, where each rank uses a received tensor at once.
  EXPECT_EQ(early_in_pytorchs > 0, GetParam()->name != "GPipe");
}

// Only RECVs move.
TEST_P(LatestReceivesTest, LeaveOtherActionsInOrder) {
  const schedules::Shape shape{4, schedules::default_stages(*GetParam(), 4), 8};
  const ir::ComputeOrder order = schedules::make_order(*GetParam(), shape);
  ir::Diagnostics diagnostics;
  const auto pytorchs = lower(order, {}, &diagnostics);
  for (const Channels& channels : all_channels()) {
    const ir::Program program = lower_latest(order, channels);
    for (size_t rank = 0; rank < 4; ++rank) {
      ir::Row before = pytorchs->rows[rank], after = program.rows[rank];
      EXPECT_TRUE(std::ranges::is_permutation(before, after));
      std::erase_if(before, is_receive);
      std::erase_if(after, is_receive);
      EXPECT_EQ(before, after);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(AllSchedules, LatestReceivesTest,
                         testing::ValuesIn(schedules::all_schedules().begin(),
                                           schedules::all_schedules().end()),
                         [](const auto& test) {
                           std::string name(test.param->name);
                           std::erase_if(name, [](char c) { return !std::isalnum(c); });
                           return name;
                         });

std::string text(const ir::Row& row) {
  std::string joined;
  for (const ir::Action& action : row) {
    if (!joined.empty()) joined += ' ';
    ir::append_action(action, &joined);
  }
  return joined;
}

ir::Row last_rank(const char* name, const schedules::Shape& shape, const Channels& channels) {
  ir::Program program =
      lower_latest(schedules::make_order(*schedules::find_schedule(name), shape), channels);
  std::erase_if(program.rows.back(), [](const ir::Action& action) {
    return !ir::is_compute(action.kind()) && !ir::is_send(action.kind()) && !is_receive(action);
  });
  return program.rows.back();
}

// By hand. With one queue per direction each RECV is just before its use. Where both directions
// share a queue, `1SEND_B0` must come after `1RECV_F1`, as rank 0 posts 0SEND_F1 before 0RECV_B0.
TEST(LatestReceivesTest, TheLastRankOf1F1B) {
  EXPECT_EQ(text(last_rank("1F1B", {2, 2, 3}, {ir::ChannelModel::kEdge, 0})),
            "1RECV_F0 1F0 1B0 1SEND_B0 1RECV_F1 1F1 1B1 1SEND_B1 1RECV_F2 1F2 1B2 1SEND_B2");
  const std::string shared =
      "1RECV_F0 1F0 1B0 1RECV_F1 1SEND_B0 1F1 1B1 1RECV_F2 1SEND_B1 1F2 1B2 1SEND_B2";
  EXPECT_EQ(text(last_rank("1F1B", {2, 2, 3}, {ir::ChannelModel::kPeer, 0})), shared);
  EXPECT_EQ(text(last_rank("1F1B", {2, 2, 3}, {ir::ChannelModel::kRank, 0})), shared);
  // With capacity 1, rank 0's SEND ends before its RECV, and rank 0 reaches its own RECV.
  EXPECT_EQ(text(last_rank("1F1B", {2, 2, 3}, {ir::ChannelModel::kPeer, 1})),
            "1RECV_F0 1F0 1B0 1SEND_B0 1RECV_F1 1F1 1B1 1SEND_B1 1RECV_F2 1F2 1B2 1SEND_B2");
}

// In a V on two ranks an edge carries both outputs and gradients: RECVs just before their uses
// would meet the wrong SENDs.
TEST(LatestReceivesTest, JustBeforeTheirUseIsASwapInAV) {
  const Channels channels{ir::ChannelModel::kEdge, 0};
  const ir::Program program =
      lower_latest(schedules::make_order(*schedules::find_schedule("ZBV"), {2, 4, 8}), channels);
  ir::Program before_use = program;
  for (ir::Row& row : before_use.rows) {
    ir::Row receives, rest;
    for (const ir::Action& action : row) (is_receive(action) ? receives : rest).push_back(action);
    row.clear();
    for (const ir::Action& action : rest) {
      for (const ir::Action& receive : receives) {
        const bool uses = std::ranges::any_of(action.parts(), [&](ir::ActionPart part) {
          return part.stage() == receive.parts()[0].stage() &&
                 part.microbatch() == receive.parts()[0].microbatch() &&
                 (receive.kind() == ir::ActionKind::kRecvF ? part.kind() == ir::ActionKind::kForward
                                                           : ir::gives_input_gradient(part.kind()));
        });
        if (uses) row.push_back(receive);
      }
      row.push_back(action);
    }
  }
  ir::Diagnostics diagnostics;
  EXPECT_FALSE(verify(before_use, {channels.model, channels.capacity, false}, &diagnostics));
  EXPECT_TRUE(std::ranges::any_of(
      diagnostics.kept(), [](const ir::Diagnostic& one) { return one.rule == ir::Rule::kSwap; }));
  EXPECT_TRUE(verify(program, {channels.model, channels.capacity, false}, &diagnostics));
}

TEST(LatestReceivesTest, RecordTheChannelModel) {
  const ir::Program program =
      lower_latest(schedules::make_order(*schedules::find_schedule("1F1B"), {2, 2, 2}),
                   {ir::ChannelModel::kPeer, 3});
  EXPECT_EQ(program.lowering.receives, ir::Receives::kLatest);
  EXPECT_EQ(program.lowering.channels, ir::ChannelModel::kPeer);
  EXPECT_EQ(program.lowering.capacity, 3u);
}

}  // namespace
}  // namespace pipewright::schedule
