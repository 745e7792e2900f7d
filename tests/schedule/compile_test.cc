// The front door: sources, levels, policies and depths, and that every error is a diagnostic.
#include "pipewright/schedule/compile/compile.h"

#include <gtest/gtest.h>

#include <sstream>

#include "pipewright/ir/text/read.h"
#include "pipewright/ir/text/render.h"
#include "pipewright/schedules/registry.h"

namespace pipewright::schedule {
namespace {

std::string text_of(const ir::Diagnostics& diagnostics, const ir::Source* source = nullptr) {
  return ir::render(diagnostics, source, {});
}

std::string errors_of(CompileRequest request) {
  const auto* file = std::get_if<const ir::Source*>(&request.source);
  const ir::Source* source = file == nullptr ? nullptr : *file;
  const CompileResult result = compile(std::move(request));
  EXPECT_EQ(result.ok(), !result.diagnostics.has_errors());
  return text_of(result.diagnostics, source);
}

std::string as_text(const ir::AnySchedule& schedule, std::string_view format) {
  std::ostringstream out;
  ir::find_format(format)->print(schedule, out);
  return out.str();
}

TEST(CompileTest, ANameBecomesAVerifiedProgram) {
  const CompileResult result = compile({.source = "zbv", .shape = {.ranks = 4, .microbatches = 8}});
  ASSERT_TRUE(result.ok()) << text_of(result.diagnostics);
  EXPECT_EQ(result.program().name, "ZBVZeroBubble");
  EXPECT_EQ(result.program().placement, ir::Placement::v(4, 8));
  EXPECT_EQ(result.source_level, ir::Level::kComputeOnly);
  EXPECT_EQ(result.source_actions, 3u * 8 * 8);
  EXPECT_TRUE(result.is_verified);
  ASSERT_EQ(result.certificate.size(), 4u);
  EXPECT_EQ(result.certificate[0].activations.amount, 8);
  EXPECT_EQ(result.checked, (std::vector<std::string_view>{"text", "shape", "completeness", "order",
                                                           "lowering", "data_flow", "residency",
                                                           "reduction", "waits", "channels"}));
}

TEST(CompileTest, TheThreeSourcesMeanTheSame) {
  const schedules::Shape shape{.ranks = 2, .stages = 6, .microbatches = 8};
  const ir::ComputeOrder order =
      schedules::make_order(*schedules::find_schedule("Interleaved1F1B"), shape);
  const ir::Source file{"order.plan", as_text(order, "plan")};
  const CompileResult by_name = compile({.source = "Interleaved1F1B", .shape = shape}),
                      by_file = compile({.source = &file}), in_memory = compile({.source = order});
  ASSERT_TRUE(by_name.ok() && by_file.ok() && in_memory.ok());
  EXPECT_EQ(by_name.program(), by_file.program());
  EXPECT_EQ(by_name.program(), in_memory.program());

  // A program does not change.
  const ir::Source lowered{"program.plan", as_text(*by_name.schedule, "plan")};
  const CompileResult again = compile({.source = &lowered, .shape = shape});
  ASSERT_TRUE(again.ok()) << text_of(again.diagnostics, &lowered);
  EXPECT_EQ(again.source_level, ir::Level::kComputeComms);
  EXPECT_EQ(again.program(), by_name.program());
  EXPECT_EQ(compile({.source = by_name.program()}).program(), by_name.program());
}

TEST(CompileTest, ASourceCanBeReadFirst) {
  const ir::Source file{"order.csv", "0F0,0B0\n1F0,1B0\n"};
  ReadSource read = read_source({.source = &file, .shape = {.ranks = 2}});
  ASSERT_TRUE(read.ok());
  EXPECT_EQ(read.level(), ir::Level::kComputeOnly);
  EXPECT_EQ(read.num_stages(), 2);
  EXPECT_EQ(read.recording(), nullptr);
  const CompileResult compiled = compile({.source = std::move(read)});
  ASSERT_TRUE(compiled.ok());
  EXPECT_EQ(compiled.program(), compile({.source = &file}).program());
  EXPECT_EQ(read_source({.source = compiled.program()}).level(), ir::Level::kComputeComms);

  const schedules::Shape shape{.ranks = 4, .microbatches = 8};
  read = read_source({.source = "ZBV", .shape = shape});
  ASSERT_TRUE(read.ok());
  EXPECT_EQ(read.level(), ir::Level::kComputeOnly);
  EXPECT_EQ(read.num_stages(), 8);
  EXPECT_EQ(compile({.source = std::move(read)}).program(),
            compile({.source = "ZBV", .shape = shape}).program());

  // What compile() reports is what reading reports.
  for (const std::string name : {"1F1C", "1F1B"}) {
    read = read_source({.source = name});
    EXPECT_FALSE(read.ok());
    EXPECT_EQ(text_of(compile({.source = std::move(read)}).diagnostics),
              errors_of({.source = name}));
  }
}

TEST(CompileTest, LevelsAndDepths) {
  const schedules::Shape shape{.ranks = 2, .microbatches = 2};
  // The own level of a name is compute_only.
  const CompileResult order = compile({.source = "1F1B", .shape = shape, .level = {}});
  ASSERT_TRUE(order.ok());
  EXPECT_EQ(ir::level_of(*order.schedule), ir::Level::kComputeOnly);
  EXPECT_TRUE(order.is_verified);
  EXPECT_TRUE(order.certificate.empty());

  const CompileResult program =
      compile({.source = "1F1B", .shape = shape, .depth = Depth::kVerify});
  EXPECT_TRUE(program.is_verified);
  EXPECT_TRUE(program.certificate.empty());

  // With Depth::kLower, a schedule that is not lowered may be invalid.
  const ir::Source wrong{"wrong.csv", "0F0\n1RECV_F0,1F0\n"};
  const CompileResult lowered = compile({.source = &wrong, .depth = Depth::kLower});
  EXPECT_TRUE(lowered.ok());
  EXPECT_FALSE(lowered.is_verified);
  EXPECT_FALSE(compile({.source = &wrong}).ok());
}

// A program can lose its communication, and is then lowered as any other order.
TEST(CompileTest, AProgramBecomesAnOrderAndTheSameProgramAgain) {
  for (const schedules::ScheduleSpec* spec : schedules::all_schedules()) {
    const CompileResult program = compile({.source = std::string(spec->name),
                                           .shape = {.ranks = 4, .microbatches = 8},
                                           .policies = {.residency = 2,
                                                        .receives = ir::Receives::kLatest,
                                                        .reduce_every = 3,
                                                        .channels = ir::ChannelModel::kPeer}});
    ASSERT_TRUE(program.ok()) << spec->name << text_of(program.diagnostics);
    const CompileResult order =
        compile({.source = program.program(), .level = ir::Level::kComputeOnly});
    ASSERT_TRUE(order.ok() && order.is_verified) << text_of(order.diagnostics);
    EXPECT_EQ(ir::level_of(*order.schedule), ir::Level::kComputeOnly);
    EXPECT_EQ(compile({.source = *order.schedule}).program(), program.program()) << spec->name;
  }
  // Also one that deadlocks, and its computes can be transformed.
  const ir::Source dead{"dead.csv", "0F0,0RECV_B0,0SEND_F0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n"};
  EXPECT_NE(errors_of({.source = &dead, .policies = {.channels = ir::ChannelModel::kPeer}}), "");
  const CompileResult order = compile({.source = &dead, .level = ir::Level::kComputeOnly});
  ASSERT_TRUE(order.ok());
  EXPECT_EQ(as_text(*order.schedule, "csv"), "0F0,0B0\r\n1F0,1B0\r\n");
  const CompileResult forwards = compile(
      {.source = &dead, .policies = {.forward_only = true}, .level = ir::Level::kComputeOnly});
  EXPECT_EQ(as_text(*forwards.schedule, "csv"), "0F0\r\n1F0\r\n");
}

// A check that did not run is not listed.
TEST(CompileTest, ChecksThatRanAreListed) {
  const auto checked = [](const char* name, const char* text) {
    const ir::Source file{name, text};
    return compile({.source = &file}).checked;
  };
  using Checks = std::vector<std::string_view>;
  EXPECT_EQ(checked("a.csv", "0Q0\n"), (Checks{"text", "shape"}));
  EXPECT_EQ(checked("a.csv", "0F0,0F1,0B0\n"), (Checks{"text", "shape", "completeness"}));
  EXPECT_EQ(checked("a.csv", "0UNSHARD,0F0,0F1,0B0,0RESHARD\n"),
            (Checks{"text", "shape", "completeness", "residency", "reduction"}));
  EXPECT_EQ(checked("a.csv", "0F0,0SEND_F0,0B0\n1RECV_F0,1F0,1B0\n"),
            (Checks{"text", "shape", "completeness", "data_flow", "residency", "reduction"}));
  EXPECT_EQ(
      checked("a.csv", "0F0,0SEND_F0\n1RECV_F0,1F0\n"),
      (Checks{"text", "shape", "completeness", "data_flow", "residency", "reduction", "channels"}));
  EXPECT_EQ(checked("a.plan",
                    "pipewright plan 1\nlevel: compute_comms\nranks: 1\nstages: 1\nmicrobatches: "
                    "1\nplacement: loop\nforward-only: true\nrank 0: 0F0\n"),
            (Checks{"text", "shape", "completeness", "data_flow", "residency", "reduction",
                    "channels", "policies"}));
}

TEST(CompileTest, PoliciesReachThePassesAndTheVerifier) {
  const CompileResult result = compile({
      .source = "1F1B",
      .shape = {.ranks = 2, .microbatches = 4},
      .policies = {.split_backward = true, .reduce_every = 2, .channels = ir::ChannelModel::kPeer},
  });
  ASSERT_TRUE(result.ok()) << text_of(result.diagnostics);
  EXPECT_EQ(result.program().lowering.split_backward, true);
  EXPECT_EQ(result.program().lowering.reduce_every, 2);
  EXPECT_EQ(result.program().lowering.channels, ir::ChannelModel::kPeer);
  // With one queue per rank, SEND_F1 and SEND_B0 wait for each other.
  const ir::Source program{"program.csv",
                           "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n"
                           "1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1\n"};
  EXPECT_EQ(errors_of({.source = &program}), "");
  const std::string errors = errors_of({
      .source = &program,
      .policies = {.channels = ir::ChannelModel::kRank},
  });
  EXPECT_TRUE(errors.starts_with("program.csv:1:18: error[PW042]")) << errors;
}

TEST(CompileTest, TheObserverSeesEachPass) {
  std::vector<std::string> passes;
  compile({.source = "GPipe",
           .shape = {.ranks = 2, .microbatches = 2},
           .policies = {.forward_only = true},
           .observer = [&](std::string_view pass, const ir::AnySchedule&) {
             passes.emplace_back(pass);
           }});
  EXPECT_EQ(passes,
            (std::vector<std::string>{"forward_only", "add_unshard_reshard", "add_reduce_grad",
                                      "add_send_recv", "add_wait_send"}));
}

TEST(CompileTest, WhatIsAskedForWronglyIsADiagnostic) {
  EXPECT_EQ(errors_of({.source = "1F1C", .shape = {.ranks = 2, .microbatches = 2}}),
            "error[PW070]: there is no schedule `1F1C`\nhelp: did you mean `1F1B`?\n");
  EXPECT_EQ(errors_of({.source = "1F1B", .shape = {.ranks = 2}}),
            "error[PW071]: the shape of 1F1B is incomplete: expected `ranks` and `microbatches`, "
            "got only `ranks`\nhelp: add `--microbatches M`\n");
  EXPECT_EQ(errors_of({.source = "1F1B"}),
            "error[PW071]: the shape of 1F1B is incomplete: expected `ranks` and `microbatches`, "
            "got neither\nhelp: add `--ranks P --microbatches M`\n");
  EXPECT_EQ(errors_of({.source = "DualPipeV", .shape = {.ranks = 4, .microbatches = 4}}),
            "error[PW071]: DualPipeV does not exist for this shape: expected that microbatches >= "
            "stages, got 4 ranks, 8 stages, 4 microbatches\n"
            "note: both arms of the V must fill before they overlap\n"
            "help: nearest: 8 microbatches\n");
  EXPECT_EQ(errors_of({.source = "1F1B", .shape = {.ranks = -1, .microbatches = 4}}),
            "error[PW071]: 1F1B does not exist for this shape: expected at least 1 of each, got -1 "
            "ranks, -1 stages, 4 microbatches\n");
  EXPECT_EQ(errors_of({.source = "1F1B",
                       .shape = {.ranks = 2, .microbatches = 2},
                       .policies = {.residency = 2, .capacity = 1},
                       .level = ir::Level::kComputeOnly}),
            "error[PW072]: `residency` applies only to programs; the level is compute_only\n"
            "error[PW072]: `capacity` applies only to programs; the level is compute_only\n");
  EXPECT_EQ(errors_of({.source = "1F1B",
                       .shape = {.ranks = 2, .microbatches = 2},
                       .policies = {.lookahead = 0}}),
            "error[PW085]: `lookahead`: expected a positive integer, full, auto or one integer per "
            "rank, got "
            "`0`\n");
  const ir::Source program{"lowered.csv", "0F0,0SEND_F0\n1RECV_F0,1F0\n"};
  EXPECT_EQ(errors_of({.source = &program, .policies = {.forward_only = true}}),
            "lowered.csv: error[PW072]: `forward-only` applies only to compute orders; "
            "lowered.csv is already lowered\n"
            "help: print it with `--level compute_only` first, and lower the result\n");
  EXPECT_EQ(errors_of({.source = &program, .shape = {.group_size = 2}}),
            "lowered.csv: error[PW072]: `group-size` applies only to schedules generated by name; "
            "lowered.csv is a file\n");
}

TEST(CompileTest, ErrorsHaveTheirPlaceInTheFile) {
  const ir::Source order{"order.csv", "0F0,0B0,0F1,0B1\n1F0,1F1,1B0,1B1\n"};
  const CompileResult result = compile({.source = &order});
  EXPECT_FALSE(result.ok());
  ASSERT_EQ(result.diagnostics.total(), 1u);
  const ir::Diagnostic& error = result.diagnostics.kept()[0];
  EXPECT_EQ(error.place.line, 1u);
  EXPECT_EQ(error.place.column, 5u);
  ASSERT_EQ(error.notes.size(), 2u);
  EXPECT_EQ(error.notes[1].place.line, 2u);
  EXPECT_EQ(error.notes[1].place.column, 5u);
  EXPECT_EQ(result.checked.back(), "order");
}

TEST(CompileTest, ASchedulesInMemoryIsCheckedToo) {
  EXPECT_NE(errors_of({.source = ir::ComputeOrder()}).find("the schedule is empty"),
            std::string::npos);
  ir::ComputeOrder order = schedules::make_order(*schedules::find_schedule("1F1B"),
                                                 {.ranks = 2, .stages = 2, .microbatches = 2});
  EXPECT_NE(errors_of({.source = order, .shape = {.microbatches = 3}}).find("error[PW023]"),
            std::string::npos);
  std::swap(order.rows[0], order.rows[1]);
  EXPECT_NE(errors_of({.source = order}).find("error[PW026]"), std::string::npos);
  order.rows.pop_back();
  EXPECT_NE(errors_of({.source = order}).find("error[PW027]"), std::string::npos);
}

// Both ranks first send: with one queue per rank, 0SEND_F1 and 1SEND_B0 block each other.
TEST(CompileTest, WhatCannotRunIsKeptAndSimulatedUntilItStops) {
  const ir::Source source{"late.csv",
                          "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n"
                          "1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1\n"};
  const CompileResult runs = compile({.source = &source, .level = std::nullopt});
  EXPECT_TRUE(runs.ok());
  EXPECT_FALSE(runs.blocked);
  const CompileResult dead =
      compile({.source = &source, .policies = {.channels = ir::ChannelModel::kRank}, .level = {}});
  EXPECT_FALSE(dead.ok());
  ASSERT_TRUE(dead.blocked);
  ir::Diagnostics diagnostics;
  const auto stopped = simulate_blocked(dead, {.costs = {.forward = 2}}, &diagnostics);
  ASSERT_TRUE(stopped);
  // 0F0, 0F1, 1F0 and 1B0 run; 0SEND_F0 and 1RECV_F0 too. 1B0 ends at 2 + 2 + 2.
  EXPECT_EQ(stopped->standstill.num_blocked, 16 - 6);
  EXPECT_EQ(stopped->timeline.at(1, 2), (ir::Interval{4, 6}));
  for (const size_t step : {3, 4, 5, 6, 7}) {
    EXPECT_TRUE(stopped->standstill.blocked[stopped->timeline.index(0, step)]);
    EXPECT_EQ(stopped->timeline.at(0, step), ir::Interval());
  }
  ASSERT_EQ(stopped->standstill.waits.size(), 4);
  const Standstill::Edge& first = stopped->standstill.waits[0];
  EXPECT_EQ(
      first.text,
      "`0SEND_F1` on rank 0 waits for `1RECV_F1` on rank 1, which is queued after `1SEND_B0`");
  EXPECT_EQ(std::pair(first.waiting.rank, first.waiting.step), std::pair(size_t{0}, size_t{3}));
  EXPECT_EQ(std::pair(first.blocking.rank, first.blocking.step), std::pair(size_t{1}, size_t{3}));
  EXPECT_FALSE(simulate_blocked(dead, {.slow = {{2, 1.5}}}, &diagnostics));
  EXPECT_TRUE(diagnostics.has_errors());

  // An order that cannot run is kept as an order; other errors keep nothing.
  const ir::Source order{"order.csv", "0F0,0B0,0F1,0B1\n1F0,1F1,1B0,1B1\n"};
  const CompileResult stuck = compile({.source = &order});
  ASSERT_TRUE(stuck.blocked);
  EXPECT_EQ(ir::level_of(*stuck.blocked), ir::Level::kComputeOnly);
  const ir::Source incomplete{"incomplete.csv", "0F0,0B0\n1F0\n"};
  EXPECT_FALSE(compile({.source = &incomplete}).blocked);
}

TEST(CompileTest, CostsGiveATimeline) {
  const CompileResult order =
      compile({.source = "1F1B", .shape = {.ranks = 4, .microbatches = 8}, .level = std::nullopt});
  const SimulateResult result = simulate(order, {});
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result.simulation->report.makespan, 33);
  // F takes twice as long and rank 1 has half the speed; `costs` contains both changes.
  const SimulateResult changed = simulate(order, {.scale = {{"F", 2}}, .slow = {{1, 2}}});
  ASSERT_TRUE(changed.ok());
  EXPECT_EQ(changed.simulation->costs.forward, PerStage(2));
  EXPECT_EQ(changed.simulation->costs.rank_scale, (std::vector<double>{1, 2, 1, 1}));
  EXPECT_GT(changed.simulation->report.makespan, 33);
  // A program runs under its own channel model.
  const SimulateResult program =
      simulate(compile({.source = "1F1B", .shape = {.ranks = 4, .microbatches = 8}}),
               {.costs = {.link = {.latency = 1}}});
  ASSERT_TRUE(program.ok());
  EXPECT_GT(program.simulation->report.makespan, 33);
}

// A stage may mix whole and split backwards. Where I leaves more memory in use than F did, a whole
// backward needs less, and the bound must hold for it: a bound for I and W alone is above this
// cost.
TEST(CompileTest, TheBoundHoldsForWholeBackwards) {
  constexpr int kMicrobatches = 12;
  std::string first, second;
  for (int k = 0; k < 3; ++k) first += "0F" + std::to_string(k) + ",";
  for (int k = 0; k < kMicrobatches; ++k) {
    const std::string number = std::to_string(k);
    first += k + 1 < kMicrobatches ? "0B" + number + "," : "0I" + number + ",0W" + number;
    if (k + 3 < kMicrobatches) first += "0F" + std::to_string(k + 3) + ",";
    second += (k > 0 ? ",1F" : "1F") + number + ",1B" + number;
  }
  const ir::Source file{"mixed.csv", first + "\n" + second + "\n"};
  const CompileResult order =
      compile({.source = &file, .shape = {.ranks = 2}, .level = std::nullopt});
  ASSERT_TRUE(order.ok()) << text_of(order.diagnostics, &file);
  const SimulateResult run = simulate(order, {.costs = {.forward = PerStage({1, 4}),
                                                        .backward_input = PerStage({1, 4}),
                                                        .backward_weight = PerStage({10, 0}),
                                                        .activation_bytes = 10,
                                                        .weight_input_bytes = 30},
                                              .memory = {.activations = 3}});
  ASSERT_TRUE(run.ok());
  EXPECT_FALSE(simulate(order, {.with_bound = false}).simulation->bound);
  EXPECT_LE(run.simulation->bound->value, run.simulation->report.cost);
  EXPECT_EQ(run.simulation->bound->weight_inputs, std::vector<double>({10, 0}));
}

TEST(CompileTest, WrongCostsAreDiagnostics) {
  const CompileResult order =
      compile({.source = "1F1B", .shape = {.ranks = 2, .microbatches = 2}, .level = std::nullopt});
  EXPECT_EQ(text_of(simulate(order, {.scale = {{"X", 2}}, .slow = {{2, 2}, {0, -1}}}).diagnostics),
            "error[PW082]: there is no cost `X` to scale\n"
            "help: costs to scale are F, B, I, W, UNSHARD, RESHARD, REDUCE_GRAD, COMM\n"
            "error[PW073]: there is no rank 2 to slow down: expected 0 to 1, got 2\n"
            "error[PW085]: a factor for rank 0: expected 0 or a number from 1e-12 to 1e+18, got "
            "-1\n");
  EXPECT_EQ(text_of(simulate(order, {.costs = {.forward = PerStage({1, 2, 3})}}).diagnostics),
            "error[PW073]: `forward`: expected 2 numbers, one per stage, got 3\n"
            "help: one number instead of the list holds for all stages\n");
  // Costs that do not fit and changes that do not are reported together.
  EXPECT_EQ(simulate(order, {.costs = {.forward = PerStage({1, 2, 3})}, .slow = {{2, 2}}})
                .diagnostics.total(),
            2u);
  // If compilation failed, simulate() returns its diagnostics.
  const CompileResult none = compile({.source = "nothing"});
  EXPECT_EQ(text_of(simulate(none, {}).diagnostics), text_of(none.diagnostics));
}

}  // namespace
}  // namespace pipewright::schedule
