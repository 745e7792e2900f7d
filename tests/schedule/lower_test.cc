// Complete lowerings: they equal PyTorch's token for token, for files that PyTorch wrote; and the
// number of UNSHARDs.
#include "pipewright/schedule/lowering/lower.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <set>
#include <sstream>

#include "pipewright/ir/text/csv.h"
#include "pipewright/schedule/lowering/add_send_recv.h"
#include "pipewright/schedule/lowering/add_unshard_reshard.h"
#include "pipewright/schedule/verify/verify.h"
#include "pipewright/schedules/registry.h"

namespace pipewright::schedule {
namespace {

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

ir::ComputeOrder read_order(const std::string& path) {
  const ir::Source source{path, read_file(path)};
  ir::Diagnostics diagnostics;
  auto parsed = ir::parse_csv(source, &diagnostics);
  EXPECT_TRUE(parsed) << path;
  return std::get<ir::ComputeOrder>(parsed->schedule);
}

std::string csv(const ir::Rows& rows) {
  std::ostringstream out;
  ir::print_csv(rows, out);
  return out.str();
}

// The file holds PyTorch's lowering of an order, which the verifier accepts unless `swaps`.
void expect_lowers_to(const std::string& lowered, const std::string& order,
                      const ir::Lowering& policies, bool swaps = false) {
  ir::Diagnostics diagnostics;
  const auto program = lower(read_order(order), policies, &diagnostics);
  ASSERT_TRUE(program) << lowered;
  EXPECT_EQ(csv(program->rows), read_file(lowered)) << lowered;
  EXPECT_EQ(verify(*program, {}, &diagnostics), !swaps) << lowered;
  for (const ir::Diagnostic& error : diagnostics.kept()) EXPECT_EQ(error.rule, ir::Rule::kSwap);
}

TEST(LowerTest, IsThatOfPyTorch211TokenForToken) {
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator("tests/orders")) {
    const std::string path = entry.path().string();
    const std::string lowered_path = path.substr(0, path.size() - 4) + "_comms.csv";
    if (path.find("zb1p") != std::string::npos || !std::filesystem::exists(lowered_path)) continue;
    ir::Lowering policies;
    policies.torch = ir::Torch::k2_11;
    expect_lowers_to(lowered_path, path, policies);
    ++files;
  }
  EXPECT_EQ(files, 24);
}

// The files ORDER+POLICY=VALUE... .csv.
TEST(LowerTest, IsThatOfPyTorch215TokenForToken) {
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator("tests/orders/torch_2.15")) {
    std::istringstream name(entry.path().stem().string());
    std::string order, policy;
    std::getline(name, order, '+');
    ir::Lowering policies;
    while (std::getline(name, policy, '+')) {
      const size_t equals = policy.find('=');
      const auto* known = ir::find_lowering_policy(policy.substr(0, equals));
      ASSERT_TRUE(known && known->set(policies, policy.substr(equals + 1))) << policy;
    }
    // PyTorch posts RECVs from one rank in another order than it sends: on NCCL, which has no tags,
    // they would receive each other's tensors.
    const bool swaps = policies.receives == ir::Receives::kParity &&
                       (order.starts_with("ZBV") || order.starts_with("DualPipeV"));
    expect_lowers_to(entry.path().string(), "tests/orders/" + order + ".csv", policies, swaps);
    ++files;
  }
  EXPECT_EQ(files, 54);
}

// PyTorch's test_csv: merged and with SENDs and RECVs, without UNSHARD and REDUCE_GRAD.
TEST(LowerTest, TestCsvZb1p2Rank2Stagep) {
  const auto program =
      add_send_recv({merge_backward(read_order("tests/orders/zb1p_2rank_2stagep_compute.csv"))});
  ASSERT_TRUE(program);
  EXPECT_EQ(csv(program->rows), read_file("tests/orders/zb1p_2rank_2stagep_comms.csv"));
}

TEST(LowerTest, ObserversSeeEachPassAndTheProgramRecordsPolicies) {
  const schedules::ScheduleSpec& spec = *schedules::find_schedule("ZBV");
  std::vector<std::string> seen;
  ir::Diagnostics diagnostics;
  ir::Lowering policies;
  policies.merge_backward = true;
  policies.reduce_every = 2;
  policies.max_outstanding_sends = 2;
  policies.receives = ir::Receives::kParity;
  const auto program =
      lower(schedules::make_order(spec, {2, 4, 4}), policies, &diagnostics,
            [&](std::string_view pass, const ir::AnySchedule&) { seen.emplace_back(pass); });
  EXPECT_EQ(seen, (std::vector<std::string>{"merge_backward", "add_unshard_reshard",
                                            "add_reduce_grad", "add_send_recv", "parity_receives",
                                            "add_wait_send", "limit_sends"}));
  ir::Lowering recorded = policies;
  recorded.torch = ir::Torch::k2_15;
  recorded.residency = 3;
  recorded.lookahead = ir::Lookahead(ir::Lookahead::Kind::kFull);
  recorded.evict = ir::Eviction::kPytorch;
  EXPECT_EQ(program->lowering, recorded);
}

int count(const ir::Row& row, ir::ActionKind kind) {
  int found = 0;
  for (const ir::Action& action : row) found += action.kind() == kind;
  return found;
}

int gathers(const char* name, int rank, int residency, int lookahead, ir::Eviction evict) {
  const ir::ComputeOrder order =
      schedules::make_order(*schedules::find_schedule(name), {4, 16, 16});
  return count(
      add_unshard_reshard(order, {residency, lookahead, evict}).rows[static_cast<size_t>(rank)],
      ir::ActionKind::kUnshard);
}

// 4 ranks, 4 stages per rank, 16 microbatches: the UNSHARDs of the first and the last rank, as
// counted in the output of PyTorch's code.
TEST(LowerTest, PyTorchsGathersAtEachResidency) {
  const std::map<int, std::pair<int, int>> expected = {
      {1, {75, 61}}, {2, {20, 20}}, {3, {15, 13}}, {4, {4, 4}}};
  for (const auto& [k, gather] : expected) {
    EXPECT_EQ(gathers("Interleaved1F1B", 0, k, k, ir::Eviction::kPytorch), gather.first) << k;
    EXPECT_EQ(gathers("Interleaved1F1B", 3, k, k, ir::Eviction::kPytorch), gather.second) << k;
  }
  EXPECT_EQ(gathers("InterleavedZeroBubble", 0, 2, 2, ir::Eviction::kPytorch), 20);
  EXPECT_EQ(gathers("InterleavedZeroBubble", 3, 2, 2, ir::Eviction::kPytorch), 74);
}

TEST(LowerTest, FarthestGathersLessOften) {
  for (const int lookahead : {1, 2, 3}) {
    EXPECT_EQ(gathers("Interleaved1F1B", 0, 3, lookahead, ir::Eviction::kFarthest), 11)
        << lookahead;
    EXPECT_EQ(gathers("Interleaved1F1B", 3, 3, lookahead, ir::Eviction::kFarthest), 11)
        << lookahead;
  }
  EXPECT_EQ(gathers("InterleavedZeroBubble", 0, 2, 1, ir::Eviction::kFarthest), 18);
  EXPECT_EQ(gathers("InterleavedZeroBubble", 3, 2, 1, ir::Eviction::kFarthest), 43);
}

// The fewest UNSHARDs with which a row can run, by trying every choice of the stage to reshard.
int fewest_gathers(const ir::Row& row, size_t position, std::vector<int> active, size_t residency,
                   std::map<std::pair<size_t, std::vector<int>>, int>* known) {
  if (position == row.size()) return 0;
  const auto key = std::pair(position, active);
  if (const auto found = known->find(key); found != known->end()) return found->second;
  const int stage = row[position].parts()[0].stage();
  int best = 1 << 20;
  if (std::ranges::find(active, stage) != active.end()) {
    best = fewest_gathers(row, position + 1, active, residency, known);
  } else if (active.size() < residency) {
    std::vector<int> more = active;
    more.push_back(stage);
    std::ranges::sort(more);
    best = 1 + fewest_gathers(row, position + 1, more, residency, known);
  } else {
    for (int& victim : active) {
      std::vector<int> other = active;
      other[static_cast<size_t>(&victim - active.data())] = stage;
      std::ranges::sort(other);
      best = std::min(best, 1 + fewest_gathers(row, position + 1, other, residency, known));
    }
  }
  return (*known)[key] = best;
}

TEST(LowerTest, FarthestNeedsTheFewestGathersPossible) {
  for (const char* name : {"Interleaved1F1B", "InterleavedZeroBubble", "LoopedBFS"}) {
    const ir::ComputeOrder order =
        schedules::make_order(*schedules::find_schedule(name), {2, 8, 6});
    for (size_t rank = 0; rank < 2; ++rank) {
      ir::Row row = order.rows[rank];
      std::erase_if(row, [](const ir::Action& action) { return action.is_idle(); });
      for (const int residency : {1, 2, 3}) {
        std::map<std::pair<size_t, std::vector<int>>, int> known;
        const int best = fewest_gathers(row, 0, {}, static_cast<size_t>(residency), &known);
        for (const int lookahead : {1, 2, 4}) {
          const ir::Program program =
              add_unshard_reshard(order, {residency, lookahead, ir::Eviction::kFarthest});
          EXPECT_EQ(count(program.rows[rank], ir::ActionKind::kUnshard), best)
              << name << " rank " << rank << " residency " << residency << " lookahead "
              << lookahead;
        }
      }
    }
  }
}

// PyTorch's algorithm as its documentation states it: before each action, reshard the stages that
// are not among the next `residency` ones, then unshard the missing ones of the next `ahead`.
ir::Row by_the_book(const ir::Row& row, int residency, int ahead) {
  const auto next = [&](size_t from, int count) {
    std::vector<int> stages;
    for (; from < row.size() && stages.size() < static_cast<size_t>(count); ++from) {
      for (const ir::ActionPart part : row[from].parts()) {
        if (std::ranges::find(stages, part.stage()) == stages.end()) stages.push_back(part.stage());
      }
    }
    return stages;
  };
  ir::Row out;
  std::set<int> active;
  for (size_t at = 0; at < row.size(); ++at) {
    const std::vector<int> kept = next(at, residency);
    for (const int stage : std::set<int>(active)) {
      if (std::ranges::find(kept, stage) != kept.end()) continue;
      out.emplace_back(ir::ActionKind::kReshard, stage);
      active.erase(stage);
    }
    for (const int stage : next(at, ahead)) {
      if (active.insert(stage).second) out.emplace_back(ir::ActionKind::kUnshard, stage);
    }
    out.push_back(row[at]);
  }
  for (const int stage : active) out.emplace_back(ir::ActionKind::kReshard, stage);
  return out;
}

// pytorch#196706: `full` is the residency, `auto` is min(rank + 2, residency), a list has one
// distance per rank; only UNSHARDs move.
TEST(LowerTest, LookaheadOfEachRank) {
  using Kind = ir::Lookahead::Kind;
  for (const char* name : {"Interleaved1F1B", "InterleavedZeroBubble", "LoopedBFS"}) {
    ir::ComputeOrder order = schedules::make_order(*schedules::find_schedule(name), {4, 16, 8});
    for (ir::Row& row : order.rows)
      std::erase_if(row, [](const ir::Action& action) { return action.is_idle(); });
    for (const int residency : {1, 2, 3, 4}) {
      const int last = residency;  // of a list
      const auto of = [&](ir::Lookahead lookahead) {
        return add_unshard_reshard(order, {residency, std::move(lookahead)}).rows;
      };
      const ir::Rows full = of(ir::Lookahead(Kind::kFull)),
                     automatic = of(ir::Lookahead(Kind::kAuto)),
                     listed = of(ir::Lookahead(std::vector{1, 1, last, 1}));
      for (int rank = 0; rank < 4; ++rank) {
        const auto at = static_cast<size_t>(rank);
        const ir::Row& row = order.rows[at];
        EXPECT_EQ(full[at], by_the_book(row, residency, residency)) << name;
        EXPECT_EQ(automatic[at], by_the_book(row, residency, std::min(rank + 2, residency)))
            << name << " rank " << rank;
        EXPECT_EQ(listed[at], by_the_book(row, residency, rank == 2 ? last : 1)) << name;
        const auto without_unshards = [](ir::Row some) {
          std::erase_if(some, [](const ir::Action& action) {
            return action.kind() == ir::ActionKind::kUnshard;
          });
          return some;
        };
        EXPECT_EQ(count(full[at], ir::ActionKind::kUnshard),
                  count(listed[at], ir::ActionKind::kUnshard));
        EXPECT_EQ(without_unshards(full[at]), without_unshards(listed[at]));
        EXPECT_EQ(without_unshards(full[at]), without_unshards(automatic[at]));
      }
    }
  }
}

// Under every policy a stage is unsharded where it is used, never twice at once, and resharded at
// the end; and at most `residency` stages are unsharded, or one more for a compound.
TEST(LowerTest, EveryPolicyKeepsStagesUnshardedWhereTheyAreUsed) {
  for (const schedules::ScheduleSpec* spec : schedules::all_schedules()) {
    const ir::ComputeOrder order =
        schedules::make_order(*spec, {4, schedules::default_stages(*spec, 4), 8});
    for (const ir::Eviction evict : {ir::Eviction::kPytorch, ir::Eviction::kFarthest}) {
      for (const int residency : {1, 2, 3, 8}) {
        for (const int lookahead : {1, 2, 8}) {
          const ir::Program program = add_unshard_reshard(order, {residency, lookahead, evict});
          for (const ir::Row& row : program.rows) {
            std::map<int, bool> active;
            for (const ir::Action& action : row) {
              for (const ir::ActionPart part : action.parts()) {
                if (action.kind() == ir::ActionKind::kUnshard) {
                  ASSERT_FALSE(std::exchange(active[part.stage()], true));
                } else if (action.kind() == ir::ActionKind::kReshard) {
                  ASSERT_TRUE(std::exchange(active[part.stage()], false));
                } else {
                  ASSERT_TRUE(active[part.stage()]) << spec->name;
                }
              }
              const auto held =
                  std::ranges::count_if(active, [](const auto& one) { return one.second; });
              // Only a compound exceeds the residency, and PyTorch reshards before the next action.
              const bool beyond = action.is_compound() || !ir::is_compute(action.kind());
              ASSERT_LE(held, beyond ? residency + 1 : residency) << spec->name;
            }
            for (const auto& [stage, held] : active) ASSERT_FALSE(held) << stage;
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace pipewright::schedule
