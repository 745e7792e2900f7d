// Policies that the header of a file records: heeded by lowering, overridden by a request, and
// judged against the rows.
#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>

#include "pipewright/ir/text/read.h"
#include "pipewright/ir/text/render.h"
#include "pipewright/schedule/compile/compile.h"
#include "pipewright/schedules/registry.h"

namespace pipewright::schedule {
namespace {

std::string as_plan(const ir::AnySchedule& schedule) {
  std::ostringstream out;
  ir::find_format("plan")->print(schedule, out);
  return out.str();
}

std::string errors_of(const std::string& plan, ir::Lowering policies = {}) {
  const ir::Source file{"a.plan", plan};
  const CompileResult result = compile({.source = &file, .policies = std::move(policies)});
  EXPECT_EQ(result.ok(), !result.diagnostics.has_errors());
  return ir::render(result.diagnostics, &file, {});
}

// The first line of the errors, without the place.
std::string message_of(const std::string& plan, ir::Lowering policies = {}) {
  const std::string errors = errors_of(plan, std::move(policies));
  return errors.substr(0, errors.find('\n'));
}

// Policies other than PyTorch's, one at a time.
std::vector<ir::Lowering> single_policies() {
  return {{.torch = ir::Torch::k2_11},
          {.residency = 1},
          {.residency = 2},
          {.lookahead = 1},
          {.lookahead = ir::Lookahead(std::vector{1, 2})},
          {.lookahead = ir::Lookahead(ir::Lookahead::Kind::kFull)},
          {.lookahead = ir::Lookahead(ir::Lookahead::Kind::kAuto)},
          {.evict = ir::Eviction::kFarthest},
          {.receives = ir::Receives::kLatest},
          {.receives = ir::Receives::kLatest, .channels = ir::ChannelModel::kPeer},
          {.receives = ir::Receives::kParity},
          {.reduce_every = 3},
          {.defer_reduce_grad_wait = true},
          {.max_outstanding_sends = 8},
          {.channels = ir::ChannelModel::kRank},
          {.capacity = 2},
          {.weight_free_w = true}};
}

TEST(PoliciesTest, ThoseOfAnOrderAreHeededWhenItIsLowered) {
  const schedules::Shape shape{.ranks = 2, .stages = 8, .microbatches = 8};
  ir::ComputeOrder order =
      schedules::make_order(*schedules::find_schedule("Interleaved1F1B"), shape);
  for (const ir::Lowering& policies : single_policies()) {
    order.lowering = policies;
    const ir::Source file{"a.plan", as_plan(order)};
    const CompileResult expected =
        compile({.source = "Interleaved1F1B", .shape = shape, .policies = policies});
    const CompileResult from_file = compile({.source = &file}),
                        in_memory = compile({.source = order});
    ASSERT_TRUE(expected.ok() && from_file.ok() && in_memory.ok()) << file.text;
    EXPECT_EQ(from_file.program(), expected.program()) << file.text;
    EXPECT_EQ(in_memory.program(), expected.program()) << file.text;
    EXPECT_TRUE(from_file.overridden.empty());
  }
}

TEST(PoliciesTest, ARequestedOneWinsAndIsNamed) {
  const schedules::Shape shape{.ranks = 2, .stages = 8, .microbatches = 8};
  ir::ComputeOrder order =
      schedules::make_order(*schedules::find_schedule("Interleaved1F1B"), shape);
  order.lowering = {.residency = 3, .receives = ir::Receives::kLatest, .reduce_every = 2};
  const CompileResult result = compile({
      .source = order,
      .policies = {.residency = 2, .receives = ir::Receives::kLatest, .capacity = 1},
  });
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result.overridden, (std::vector<OverriddenPolicy>{{"residency", "3", "2"}}));
  const ir::Lowering& lowering = result.program().lowering;
  EXPECT_EQ(lowering.residency, 2);
  EXPECT_EQ(lowering.receives, ir::Receives::kLatest);
  EXPECT_EQ(lowering.reduce_every, 2);
  EXPECT_EQ(lowering.capacity, 1);
}

// What becomes of a source under some policies: its rows without the header, and how long they run
// where a transfer takes as long as an F. Empty if there are errors.
std::string outcome_of(const std::string& plan, const ir::Lowering& policies) {
  const ir::Source file{"a.plan", plan};
  const CompileResult result = compile({.source = &file, .policies = policies});
  if (!result.ok()) return "";
  std::ostringstream out;
  ir::find_format("csv")->print(*result.schedule, out);
  const SimulateResult run = simulate(result, {.costs = {.link = {.latency = 1}}});
  out << run.simulation.value().report.cost;
  return out.str();
}

// A policy that no pass and no check reads would be accepted, recorded and dropped.
TEST(PoliciesTest, EveryPolicyHasAnEffect) {
  std::vector<std::string> sources = {
      // A W on a stage that is not unsharded.
      "pipewright plan 1\nlevel: compute_comms\nranks: 1\nstages: 1\nmicrobatches: 1\n"
      "placement: loop\nrank 0: 0UNSHARD 0F0 0I0 0RESHARD 0W0 0REDUCE_GRAD\n"};
  for (const char* name : {"Interleaved1F1B", "InterleavedZeroBubble"}) {
    const schedules::Shape shape{.ranks = 4, .stages = 16, .microbatches = 8};
    sources.push_back(as_plan(schedules::make_order(*schedules::find_schedule(name), shape)));
  }
  for (const ir::LoweringPolicy& policy : ir::lowering_policies()) {
    std::vector<std::string_view> values = {"true", "1", "2"};
    values.insert(values.end(), policy.values.choices.begin(), policy.values.choices.end());
    const auto has_effect = [&](const std::string& source, std::string_view value) {
      ir::Lowering lowering;
      if (!policy.set(lowering, value)) return false;
      const std::string outcome = outcome_of(source, lowering);
      return !outcome.empty() && outcome != outcome_of(source, {});
    };
    EXPECT_TRUE(std::ranges::any_of(sources,
                                    [&](const std::string& source) {
                                      return std::ranges::any_of(values, [&](auto value) {
                                        return has_effect(source, value);
                                      });
                                    }))
        << policy.name << ": expected a pass or a check to read it";
  }
}

// What lowering records is true: it survives a round trip through a file, which is judged.
TEST(PoliciesTest, EveryLoweredProgramKeepsItsHeader) {
  int checked = 0;
  for (const schedules::ScheduleSpec* spec : schedules::all_schedules()) {
    for (const int stages : {schedules::default_stages(*spec, 2), 8}) {
      const schedules::Shape shape{.ranks = 2, .stages = stages, .microbatches = 8};
      if (schedules::shape_error(*spec, shape)) continue;
      const ir::ComputeOrder order = schedules::make_order(*spec, shape);
      for (const ir::Lowering& single : single_policies()) {
        for (ir::Lowering policies :
             {single, ir::overlay(single, {.merge_backward = true}),
              ir::overlay(single, {.merge_backward = true, .split_backward = true}),
              ir::overlay(single, {.forward_only = true}),
              ir::overlay(single, {.residency = 2, .evict = ir::Eviction::kFarthest})}) {
          const CompileResult lowered = compile({.source = order, .policies = policies});
          // PyTorch's parity rule swaps RECVs on some placements.
          if (!lowered.ok() && policies.receives == ir::Receives::kParity) continue;
          // A compound needs two stages.
          if (!lowered.ok()) {
            EXPECT_TRUE(spec->name.starts_with("DualPipe")) << spec->name;
            EXPECT_EQ(policies.residency, 1);
            continue;
          }
          const std::string plan = as_plan(*lowered.schedule);
          EXPECT_EQ(errors_of(plan), "") << plan;
          ++checked;
        }
      }
    }
  }
  EXPECT_GT(checked, 500);
}

constexpr char kOneRank[] = "ranks: 1\nstages: 2\nmicrobatches: 2\nplacement: loop\n";

TEST(PoliciesTest, TransformsDescribeTheRowsOfBothLevels) {
  for (const char* level : {"compute_only", "compute_comms"}) {
    const auto plan = [&](const char* policy, const char* row) {
      return std::string("pipewright plan 1\nlevel: ") + level +
             "\nranks: 1\nstages: 1\nmicrobatches: 2\nplacement: loop\n" + policy +
             "\nrank 0: " + row + "\n";
    };
    EXPECT_EQ(errors_of(plan("forward-only: true", "0F0 0F1 0B0 0B1")),
              "a.plan:8:17: error[PW088]: `0B0` on rank 0 is a backward, but the header declares "
              "`forward-only: true`\n"
              "rank 0: 0F0 0F1 0B0 0B1\n"
              "                ^^^\n"
              "help: remove `forward-only: true` from the header\n");
    EXPECT_EQ(errors_of(plan("forward-only: true", "0F0 0F1")), "");
    EXPECT_EQ(errors_of(plan("forward-only: false", "0F0 0F1 0B0 0B1")), "");
    EXPECT_EQ(
        message_of(plan("split-backward: true", "0F0 0F1 0I0 0W0 0B1")),
        "a.plan:8:25: error[PW088]: `0B1` on rank 0 is not split into I and W, but the header "
        "declares `split-backward: true`");
    EXPECT_EQ(errors_of(plan("split-backward: true", "0F0 0F1 0I0 0W0 0I1 0W1")), "");
    EXPECT_EQ(message_of(plan("merge-backward: true", "0F0 0F1 0I0 0I1 0W1 0W0")),
              "a.plan:8:25: error[PW088]: `0W1` on rank 0 directly follows its I, but the header "
              "declares `merge-backward: true`");
    EXPECT_EQ(errors_of(plan("merge-backward: true", "0F0 0F1 0I0 0I1 0W0 0W1")), "");
    // Splitting comes after merging.
    EXPECT_EQ(
        errors_of(plan("merge-backward: true\nsplit-backward: true", "0F0 0F1 0I0 0W0 0I1 0W1")),
        "");
  }
}

TEST(PoliciesTest, AProgramKeepsResidencyLookaheadAndEviction) {
  const auto plan = [](const std::string& policies, const char* row) {
    return std::string("pipewright plan 1\nlevel: compute_comms\n") + kOneRank + policies +
           "\nforward-only: true\nrank 0: " + row + "\n";
  };
  const char* both = "0UNSHARD 1UNSHARD 0F0 1F0 0F1 1F1 0RESHARD 1RESHARD";
  EXPECT_EQ(errors_of(plan("residency: 1", both)),
            "a.plan:9:18: error[PW088]: too many stages are unsharded at `1UNSHARD` on rank 0: "
            "expected at most 1 (residency), got 2\n"
            "rank 0: 0UNSHARD 1UNSHARD 0F0 1F0 0F1 1F1 0RESHARD 1RESHARD\n"
            "                 ^^^^^^^^\n"
            "help: set `residency: 2` in the header\n");
  EXPECT_EQ(errors_of(plan("residency: 2", both)), "");
  EXPECT_EQ(message_of(plan("residency: 1", "0F0 1F0 0F1 1F1")),
            "a.plan: error[PW088]: without UNSHARD, all 2 stages of rank 0 are unsharded: expected "
            "at most 1 (residency)");
  EXPECT_EQ(errors_of(plan("residency: 2", "0F0 1F0 0F1 1F1")), "");

  EXPECT_EQ(message_of(plan("lookahead: 1", both)),
            "a.plan:9:18: error[PW088]: `1UNSHARD` on rank 0 is too early: expected stage 1 to be "
            "the next stage in use (`lookahead: 1`)");
  EXPECT_EQ(errors_of(plan("lookahead: 1", "0UNSHARD 0F0 1UNSHARD 1F0 0F1 1F1 0RESHARD 1RESHARD")),
            "");
  EXPECT_EQ(errors_of(plan("lookahead: 2", both)), "");
  EXPECT_EQ(errors_of(plan("residency: 2\nlookahead: full", both)), "");
  EXPECT_EQ(message_of(plan("lookahead: 1,2", both)),
            "a.plan: error[PW088]: `lookahead`: expected one distance per rank (1), got 2");

  // PyTorch reshards a stage when it is not among the next ones, and not before.
  EXPECT_EQ(
      message_of(plan("residency: 1\nevict: pytorch",
                      "0UNSHARD 0F0 0RESHARD 0UNSHARD 0F1 0RESHARD 1UNSHARD 1F0 1F1 1RESHARD")),
      "a.plan:10:22: error[PW088]: `0RESHARD` on rank 0 is too early: stage 0 is the next "
      "stage in use (`evict: pytorch`)");
  EXPECT_EQ(message_of(plan("residency: 2\nevict: pytorch",
                            "0UNSHARD 0F0 0F1 1UNSHARD 1F0 0RESHARD 1F1 1RESHARD")),
            "a.plan:10:35: error[PW088]: `1F0` on rank 0 runs while stage 0 is unsharded, which is "
            "not among the next 2 stages in use (`evict: pytorch`)");
  EXPECT_EQ(errors_of(plan("residency: 2\nevict: pytorch",
                           "0UNSHARD 0F0 0F1 0RESHARD 1UNSHARD 1F0 1F1 1RESHARD")),
            "");
  EXPECT_EQ(
      message_of(plan("residency: 2\nevict: farthest",
                      "0UNSHARD 0F0 0RESHARD 1UNSHARD 1F0 0UNSHARD 0F1 0RESHARD 1F1 1RESHARD")),
      "a.plan: error[PW088]: rank 0 has too many UNSHARDs: expected 2 (`evict: farthest`, "
      "`residency: 2`), got 3");
  EXPECT_EQ(errors_of(plan("residency: 2\nevict: farthest", both)), "");
}

TEST(PoliciesTest, AProgramKeepsReceivesAndReductions) {
  const auto plan = [](const char* policies, const char* row_1) {
    return std::string("pipewright plan 1\nlevel: compute_comms\nranks: 2\nstages: 2\n") +
           "microbatches: 2\nplacement: loop\n" + policies +
           "\nrank 0: 0F0 0SEND_F0 0F1 0SEND_F1 0RECV_B0 0B0 0RECV_B1 0B1\nrank 1: " + row_1 + "\n";
  };
  const char *early = "1RECV_F0 1RECV_F1 1F0 1B0 1SEND_B0 1F1 1B1 1SEND_B1",
             *pytorchs = "1RECV_F0 1F0 1RECV_F1 1B0 1SEND_B0 1F1 1B1 1SEND_B1",
             *latest = "1RECV_F0 1F0 1B0 1SEND_B0 1RECV_F1 1F1 1B1 1SEND_B1";
  EXPECT_EQ(errors_of(plan("receives: pytorch", pytorchs)), "");
  EXPECT_EQ(errors_of(plan("receives: latest", latest)), "");
  EXPECT_EQ(
      message_of(plan("receives: latest", pytorchs)),
      "a.plan:9:22: error[PW088]: RECVs of rank 1 are not where `receives: latest` posts them: "
      "expected `1B0`, got `1RECV_F1`");
  EXPECT_EQ(message_of(plan("receives: pytorch", early)),
            "a.plan:9:18: error[PW088]: RECVs of rank 1 are not where `receives: pytorch` posts "
            "them: expected `1F0`, got `1RECV_F1`");
  // Under another model than the recorded one, the latest positions are unknown.
  EXPECT_EQ(errors_of(plan("receives: latest\nchannels: peer", early), {.channels = {}}).empty(),
            false);
  EXPECT_EQ(errors_of(plan("receives: latest\nchannels: peer", early),
                      {.channels = ir::ChannelModel::kEdge}),
            "");
  EXPECT_EQ(message_of(plan("reduce-every: 2", latest)),
            "a.plan: error[PW088]: the program has no REDUCE_GRAD, but the header declares "
            "`reduce-every: 2`");
}

TEST(PoliciesTest, AProgramKeepsItsWaits) {
  const auto plan = [](const char* policies, const char* row_0) {
    return std::string("pipewright plan 1\nlevel: compute_comms\nranks: 2\nstages: 2\n") +
           "microbatches: 2\nplacement: loop\n" + policies + "\nrank 0: " + row_0 +
           "\nrank 1: 1RECV_F0 1F0 1RECV_F1 1F1\n";
  };
  const char *none = "0F0 0SEND_F0 0F1 0SEND_F1",
             *at_end = "0F0 0SEND_F0 0F1 0SEND_F1 0WAIT_SEND_F0 0WAIT_SEND_F1",
             *one_by_one = "0F0 0SEND_F0 0F1 0WAIT_SEND_F0 0SEND_F1 0WAIT_SEND_F1";
  EXPECT_EQ(errors_of(plan("torch: 2.11", none)), "");
  EXPECT_EQ(errors_of(plan("torch: 2.15", at_end)), "");
  EXPECT_EQ(errors_of(plan("max-outstanding-sends: 2", at_end)), "");
  EXPECT_EQ(errors_of(plan("max-outstanding-sends: 1", one_by_one)), "");
  EXPECT_EQ(message_of(plan("torch: 2.15", none)),
            "a.plan: error[PW088]: no SEND or REDUCE_GRAD is awaited, but the header declares "
            "`torch: 2.15`");
  EXPECT_EQ(message_of(plan("torch: 2.11", at_end)),
            "a.plan: error[PW088]: the program has WAITs, but the header declares `torch: 2.11`");
  EXPECT_EQ(message_of(plan("max-outstanding-sends: 1", at_end)),
            "a.plan:8:26: error[PW088]: too many SENDs are pending at `0SEND_F1` on rank 0: "
            "expected at most 1 (`max-outstanding-sends: 1`), got 2");
}

TEST(PoliciesTest, WhatWaitsCannotDo) {
  const schedules::Shape shape{.ranks = 3, .stages = 6, .microbatches = 8};
  const auto errors = [&](const ir::Lowering& policies) {
    const CompileResult result =
        compile({.source = "InterleavedZeroBubble", .shape = shape, .policies = policies});
    return ir::render(result.diagnostics, nullptr, {});
  };
  // PyTorch 2.15 refuses this shape, too.
  const ir::Lowering two = {.receives = ir::Receives::kParity, .max_outstanding_sends = 2};
  EXPECT_EQ(errors(two),
            "error[PW072]: `max-outstanding-sends` is too low: a rank would wait for a SEND that "
            "cannot finish yet; expected at least 3, got 2\n"
            "help: set `max-outstanding-sends` to 3\n");
  EXPECT_EQ(errors(ir::overlay({.max_outstanding_sends = 3}, two)), "");
  EXPECT_EQ(errors({.torch = ir::Torch::k2_11, .max_outstanding_sends = 3}),
            "error[PW072]: `max-outstanding-sends` applies only to programs with WAITs; those for "
            "torch 2.11 have none\n"
            "help: set `torch` to 2.15\n");
  // In a file, likewise.
  ir::ComputeOrder order =
      schedules::make_order(*schedules::find_schedule("InterleavedZeroBubble"), shape);
  order.lowering = {.torch = ir::Torch::k2_11, .defer_reduce_grad_wait = true};
  EXPECT_TRUE(errors_of(as_plan(order))
                  .starts_with("a.plan: error[PW088]: `defer-reduce-grad-wait` applies only to"));
}

TEST(PoliciesTest, ACompoundNeedsTwoStages) {
  const schedules::Shape shape{.ranks = 2, .stages = 4, .microbatches = 4};
  const CompileResult asked =
      compile({.source = "DualPipeV", .shape = shape, .policies = {.residency = 1}});
  EXPECT_EQ(ir::render(asked.diagnostics, nullptr, {}),
            "error[PW072]: `residency` is too low for the compounds of the schedule, each of which "
            "needs two stages: expected at least 2, got 1\n"
            "help: set `residency` to 2\n");
  const CompileResult least =
      compile({.source = "DualPipeV", .shape = shape, .policies = {.residency = 2}});
  ASSERT_TRUE(least.ok());
  for (const RankCertificate& rank : least.certificate) EXPECT_LE(rank.unsharded_stages.amount, 2);
  // The same in a file is an error of the file.
  ir::ComputeOrder order = schedules::make_order(*schedules::find_schedule("DualPipeV"), shape);
  order.lowering.residency = 1;
  EXPECT_TRUE(
      errors_of(as_plan(order)).starts_with("a.plan: error[PW088]: `residency` is too low"));
  // Without compounds, one stage is enough.
  EXPECT_EQ(errors_of(as_plan(order), {.forward_only = true}), "");
}

// PyTorch's windows hold one stage more if a compound is at their end: before `3B0`, the next 3
// stages are 3, 0 and, with the compound, 1 and 2. That breaks no promise, and none is recorded.
TEST(PoliciesTest, ADefaultThatACompoundExceedsIsNotRecorded) {
  const ir::Source file{
      "a.plan",
      "pipewright plan 1\nlevel: compute_only\nranks: 1\nstages: 4\nmicrobatches: 2\nplacement: "
      "loop\nrank 0: 0F0 1F0 2F0 3F0 3B0 0F1 (1F1;2B0)OVERLAP_F_B 1B0 0B0 2F1 3F1 3B1 2B1 1B1 "
      "0B1\n"};
  const CompileResult lowered = compile({.source = &file});
  ASSERT_TRUE(lowered.ok()) << errors_of(file.text);
  EXPECT_EQ(lowered.certificate[0].unsharded_stages.amount, 4);
  EXPECT_EQ(lowered.program().lowering.residency, std::nullopt);
  EXPECT_EQ(errors_of(as_plan(*lowered.schedule)), "");
  const CompileResult two = compile({.source = &file, .policies = {.residency = 2}});
  EXPECT_EQ(ir::render(two.diagnostics, nullptr, {}),
            "error[PW072]: `residency` is too low for the compounds of the schedule, each of which "
            "needs two stages: expected at least 4, got 2\n"
            "help: set `residency` to 4\n");
  const CompileResult farthest =
      compile({.source = &file, .policies = {.residency = 2, .evict = ir::Eviction::kFarthest}});
  ASSERT_TRUE(farthest.ok());
  EXPECT_EQ(farthest.certificate[0].unsharded_stages.amount, 2);
}

}  // namespace
}  // namespace pipewright::schedule
