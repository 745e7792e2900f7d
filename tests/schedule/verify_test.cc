// The verifier over whole schedules: it accepts valid ones and refuses broken ones, and the
// certificate matches the schedules' formulas.
#include "pipewright/schedule/verify/verify.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "pipewright/ir/text/csv.h"
#include "pipewright/ir/text/render.h"
#include "pipewright/schedule/lowering/lower.h"
#include "pipewright/schedules/registry.h"

namespace pipewright::schedule {
namespace {

using ir::Action;
using ir::ActionKind;

ir::Program lowered(const ir::ComputeOrder& order, const ir::Lowering& policies = {}) {
  ir::Diagnostics diagnostics;
  auto program = lower(order, policies, &diagnostics);
  EXPECT_TRUE(program);
  return *program;
}

std::string why(const ir::Diagnostics& diagnostics) { return ir::render(diagnostics, nullptr, {}); }

// Visits the orders of all schedules over a range of shapes. Returns their number.
template <typename Visit>
int for_each_order(int most_ranks, int most_per_rank, const std::vector<int>& microbatches,
                   Visit visit) {
  int orders = 0;
  for (const schedules::ScheduleSpec* spec : schedules::all_schedules()) {
    for (int ranks = 1; ranks <= most_ranks; ++ranks) {
      for (int per_rank = 1; per_rank <= most_per_rank; ++per_rank) {
        for (const int count : microbatches) {
          const schedules::Shape shape{ranks, ranks * per_rank, count};
          if (schedules::shape_error(*spec, shape)) continue;
          SCOPED_TRACE(testing::Message()
                       << spec->name << " P=" << ranks << " V=" << per_rank << " M=" << count);
          visit(schedules::make_order(*spec, shape));
          ++orders;
        }
      }
    }
  }
  return orders;
}

TEST(VerifyTest, AcceptsEveryOrderAndItsLoweringUnderEveryModel) {
  const int orders =
      for_each_order(5, 3, {1, 2, 3, 5, 8, 12, 20}, [](const ir::ComputeOrder& order) {
        ir::Diagnostics of_order;
        EXPECT_TRUE(verify(order, &of_order)) << why(of_order);
        const ir::Program program = lowered(order);
        for (const ir::ChannelModelInfo& model : ir::channel_models()) {
          ir::Diagnostics diagnostics;
          EXPECT_TRUE(verify(program, {model.model, 0, false}, &diagnostics)) << model.name << "\n"
                                                                              << why(diagnostics);
        }
      });
  EXPECT_GT(orders, 250);
}

TEST(VerifyTest, AcceptsEveryPolicy) {
  for_each_order(4, 2, {4, 8}, [](const ir::ComputeOrder& order) {
    for (const bool forward_only : {false, true}) {
      for (const bool merge : {false, true}) {
        ir::Lowering policies;
        policies.forward_only = forward_only;
        policies.merge_backward = merge;
        policies.split_backward = !merge;
        policies.residency = merge ? 1 : 2;
        policies.lookahead = 1;
        policies.evict = ir::Eviction::kFarthest;
        policies.reduce_every = 3;
        ir::Diagnostics diagnostics;
        EXPECT_TRUE(verify(lowered(order, policies), {}, &diagnostics)) << why(diagnostics);
      }
    }
  });
}

// Small cases computed by hand. tests/schedules/peaks_test.cc checks activations against the
// schedules' formulas.
TEST(CertificateTest, PeaksOfASmallProgram) {
  // 2 ranks, 2 microbatches: rank 0 of 1F1B holds two activations and one received gradient.
  const ir::Program program =
      lowered(schedules::make_order(*schedules::find_schedule("1F1B"), {2, 2, 2}));
  // 0: 0UNSHARD 0F0 0SEND_F0 0F1 0SEND_F1 0RECV_B0 0B0 0RECV_B1 0B1 ...
  // 1: 1UNSHARD 1RECV_F0 1F0 1RECV_F1 1B0 1SEND_B0 1F1 1B1 ...
  const std::vector<RankCertificate> certificate = certify(program);
  EXPECT_EQ(certificate[0].activations, (Peak<int>{2, 3}));
  EXPECT_EQ(certificate[0].receive_buffers, (Peak<int>{1, 5}));
  EXPECT_EQ(certificate[0].unsharded_stages, (Peak<int>{1, 0}));
  EXPECT_EQ(certificate[1].activations, (Peak<int>{1, 2}));
  EXPECT_EQ(certificate[1].receive_buffers, (Peak<int>{1, 1}));
}

// By hand: what is connected with what, in each placement.
TEST(CertificateTest, CommunicatorsPerRank) {
  const auto counts = [](const char* name, const schedules::Shape& shape, const char* model) {
    ir::Program program = lowered(schedules::make_order(*schedules::find_schedule(name), shape));
    EXPECT_TRUE(ir::find_lowering_policy("channels")->set(program.lowering, model));
    const std::vector<int> found = communicators_per_rank(program);
    for (size_t rank = 0; rank < found.size(); ++rank)
      EXPECT_EQ(certify(program)[rank].communicators, found[rank]);
    return found;
  };
  using Counts = std::vector<int>;
  // A line 0 - 1 - 2 - 3: activations go one way, gradients the other.
  EXPECT_EQ(counts("1F1B", {4, 4, 8}, "edge"), (Counts{2, 4, 4, 2}));
  EXPECT_EQ(counts("1F1B", {4, 4, 8}, "peer"), (Counts{1, 2, 2, 1}));
  EXPECT_EQ(counts("1F1B", {4, 4, 8}, "rank"), (Counts{1, 1, 1, 1}));
  // A ring: the last rank sends to the first one.
  EXPECT_EQ(counts("Interleaved1F1B", {4, 8, 8}, "edge"), (Counts{4, 4, 4, 4}));
  EXPECT_EQ(counts("Interleaved1F1B", {4, 8, 8}, "peer"), (Counts{2, 2, 2, 2}));
  // On two ranks, both neighbours are the same peer.
  EXPECT_EQ(counts("Interleaved1F1B", {2, 4, 4}, "edge"), (Counts{2, 2}));
  EXPECT_EQ(counts("Interleaved1F1B", {2, 4, 4}, "peer"), (Counts{1, 1}));
  // A V is a line that is walked twice.
  EXPECT_EQ(counts("ZBV", {3, 6, 6}, "edge"), (Counts{2, 4, 2}));
  EXPECT_EQ(counts("ZBV", {3, 6, 6}, "peer"), (Counts{1, 2, 1}));
  // Without backwards, one direction is left.
  ir::Lowering forward_only;
  forward_only.forward_only = true;
  EXPECT_EQ(communicators_per_rank(lowered(
                schedules::make_order(*schedules::find_schedule("1F1B"), {3, 3, 2}), forward_only)),
            (Counts{1, 2, 1}));
  for (const char* model : {"edge", "peer", "rank"})
    EXPECT_EQ(counts("1F1B", {1, 1, 2}, model), Counts{0});
}

TEST(CertificateTest, ACompoundHoldsBothOfItsParts) {
  const ir::Program program =
      lowered(schedules::make_order(*schedules::find_schedule("DualPipeV"), {2, 4, 8}));
  for (const RankCertificate& rank : certify(program))
    EXPECT_EQ(rank.activations.amount, 5);  // 2P + 1
}

// PyTorch's _validate_schedule accepts each of these, or cannot judge them.
TEST(VerifyTest, RefusesSchedulesThatPyTorchsValidationAccepts) {
  const std::pair<const char*, ir::Rule> kCases[] = {
      {"0F0,0F0,0B0", ir::Rule::kDuplicateAction},  // sets hide duplicates
      {"0F0,0B0,0I0,0W0,0F1",
       ir::Rule::kBackwardTwice},  // mb 1 is never back-propagated, the count fits
      {"0F0,0F1,0B0,0I0,0W0", ir::Rule::kMissingWork},
      {"0F0,0B0\n1F0,1B0,1F1,1B1", ir::Rule::kMissingWork},  // stages with different microbatches
      {"0F0,0B0,0F1,0B1\n1F0,1F1,1B0,1B1", ir::Rule::kCannotRun},
  };
  for (const auto& [text, rule] : kCases) {
    const ir::Source source{"bad.csv", text};
    ir::Diagnostics diagnostics;
    const auto parsed = ir::parse_csv(source, &diagnostics);
    ASSERT_TRUE(parsed) << text;
    EXPECT_FALSE(verify(std::get<ir::ComputeOrder>(parsed->schedule), &diagnostics)) << text;
    const bool reported = std::ranges::any_of(
        diagnostics.kept(), [rule = rule](const ir::Diagnostic& one) { return one.rule == rule; });
    EXPECT_TRUE(reported) << text << "\n" << why(diagnostics);
  }
}

TEST(VerifyTest, WeightFreeWMayRunOnAReshardedStage) {
  ir::Program program;
  program.placement = ir::Placement::loop(1, 1);
  program.num_microbatches = 1;
  program.rows = {{Action(ActionKind::kUnshard, 0), Action(ActionKind::kForward, 0, 0),
                   Action(ActionKind::kBackwardInput, 0, 0), Action(ActionKind::kReshard, 0),
                   Action(ActionKind::kBackwardWeight, 0, 0)}};
  ir::Diagnostics refused, accepted, recorded;
  EXPECT_FALSE(verify(program, {}, &refused));
  EXPECT_TRUE(verify(program, {.weight_free_w = true}, &accepted));
  program.lowering.weight_free_w = true;
  EXPECT_TRUE(verify(program, {}, &recorded));
}

}  // namespace
}  // namespace pipewright::schedule
