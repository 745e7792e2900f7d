// Culprits among ranks of several programs. hang_test makes real hangs.
#include <gtest/gtest.h>

#include "pipewright/executor/hang/hang.h"
#include "tests/channel_model/programs.h"

namespace pipewright::executor {
namespace {

const ir::Program kOurs =
    channel_model::program_of(ir::Placement::loop(2, 2), 1, {"0F0 0SEND_F0", "1RECV_F0 1F0"});

// Ranks 0 and 1 run our program, 2 another one. Rank 0 waits in a collective for rank 2, which
// waits for a transfer of its program.
RankReports reports() {
  RankReports all(3);
  for (int rank = 0; rank < 3; ++rank) {
    RankReport& report = all[static_cast<size_t>(rank)].emplace();
    report.program = rank == 2 ? "theirs" : "ours";
    report.rank = rank % 2;
    report.ranks = {0, 1};
    report.phase = Phase::kRuns;
    report.step = 3;
    report.action = 0;
  }
  RankReport::Group group;
  group.name = "dp";
  group.members = {0, 2};
  all[2]->groups = {group};
  group.issued = group.joined = group.waits_for = 1;
  group.op = "allreduce";
  all[0]->groups = {group};
  all[0]->seconds = all[2]->seconds = 2;
  all[2]->action = 7;
  all[2]->waits_for = 5;
  return all;
}

std::vector<std::string> culprits(const RankReports& reports) {
  std::vector<std::string> found;
  for (const Culprit& one : find_culprits(reports, {"ours", kOurs, kOurs})) {
    EXPECT_EQ(one.ranks.size(), 1u);
    found.push_back(std::to_string(one.ranks.front()) + " " + one.problem);
  }
  return found;
}

TEST(Culprits, AWaitInAnotherProgramIsOneIfThereIsNoOther) {
  EXPECT_EQ(culprits(reports()),
            std::vector<std::string>{
                "2 step 3, action 7 waits for a transfer of another program for 2.0 s"});
}

TEST(Culprits, AWaitInAnotherProgramIsTheVictimOfAnother) {
  RankReports all = reports();
  all[1]->seconds = 2;
  all[1]->action = 1;
  EXPECT_EQ(culprits(all),
            std::vector<std::string>{"1 step 3, action 1 `1F0` has not ended for 2.0 s"});
}

TEST(Culprits, ARankWhoseDeviceHasNotEndedTheStep) {
  RankReports all = reports();
  for (auto& report : all) report->phase = Phase::kConfirms;
  all[1]->phase = Phase::kDrains;
  all[1]->action = -1;
  all[1]->seconds = 2;
  EXPECT_EQ(culprits(all), std::vector<std::string>{
                               "1 waits for its device to end the step before step 3, for 2.0 s"});
}

// Of all ranks, whichever stage they have: between two steps, and while devices end what was queued
// after a step.
TEST(Culprits, ARankThatLeavesOutACollectiveAfterAStep) {
  for (const auto& [waits, is_past] :
       {std::pair{Phase::kIdle, Phase::kBegins}, std::pair{Phase::kDrains, Phase::kConfirms}}) {
    RankReports all = reports();
    for (size_t rank = 0; rank < 3; ++rank) {
      const bool skips = rank == 2;
      all[rank]->phase = skips ? is_past : waits;
      all[rank]->action = all[rank]->waits_for = -1;
      all[rank]->seconds = 2;
      all[rank]->groups = {
          {"all", {0, 1, 2}, skips ? 1 : 2, skips ? 1 : 2, skips ? 0 : 2, "allreduce"}};
    }
    EXPECT_EQ(culprits(all),
              std::vector<std::string>{"2 left out allreduce 2 of group `all`, which rank 0 waits "
                                       "for at step 3; it is at step 3"});
    EXPECT_NE(describe(*all[0], {"ours", kOurs, kOurs})
                  .find("step 3, waits in allreduce 2 of group `all`, for 2.0 s"),
              std::string::npos);
  }
}

// It has called the collective, but a kernel before that does not end.
TEST(Culprits, ARankWhoseDeviceHasNotComeToACollective) {
  RankReports all = reports();
  for (size_t rank = 0; rank < 3; ++rank) {
    all[rank]->phase = rank == 2 ? Phase::kBegins : Phase::kIdle;
    all[rank]->action = all[rank]->waits_for = -1;
    all[rank]->seconds = 2;
    all[rank]->groups = {{"all", {0, 1, 2}, 2, rank == 2 ? 1 : 2, rank == 2 ? 0 : 2, "allreduce"}};
  }
  EXPECT_EQ(culprits(all),
            std::vector<std::string>{
                "2 has called allreduce 2 of group `all`, but its device has not reached it"});
}

}  // namespace
}  // namespace pipewright::executor
