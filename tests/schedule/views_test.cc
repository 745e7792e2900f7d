// Views: timelines as text, figures, traces with every event checked against the format, and
// differences.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "pipewright/ir/text/action_text.h"
#include "pipewright/schedule/lowering/lower.h"
#include "pipewright/schedule/simulate/simulate.h"
#include "pipewright/schedule/views/diff.h"
#include "pipewright/schedule/views/dot.h"
#include "pipewright/schedule/views/svg.h"
#include "pipewright/schedule/views/table.h"
#include "pipewright/schedule/views/timeline_text.h"
#include "pipewright/schedule/views/trace.h"
#include "pipewright/schedules/registry.h"

namespace pipewright::schedule {
namespace {

ir::ComputeOrder order_of(std::string_view name, int ranks, int microbatches) {
  const schedules::ScheduleSpec& spec = *schedules::find_schedule(name);
  return schedules::make_order(spec, {ranks, schedules::default_stages(spec, ranks), microbatches});
}

ir::Program program_of(std::string_view name, int ranks, int microbatches) {
  ir::Diagnostics diagnostics;
  return *lower(order_of(name, ranks, microbatches), {}, &diagnostics);
}

ir::Timeline run(const ir::ComputeOrder& order, const Costs& costs = {}) {
  return simulate(ChannelGraph::of_order(order), order, costs);
}
ir::Timeline run(const ir::Program& program, const Costs& costs = {}) {
  return simulate(ChannelGraph::of_program(program, ir::ChannelModel::kEdge, 0), program, costs);
}

std::string text_of(const ir::Schedule& schedule, const ir::Timeline& timeline,
                    const TimelineTextOptions& options) {
  std::ostringstream out;
  print_timeline(schedule, timeline, options, out);
  return out.str();
}

// Rank 1 runs F0 from 1 to 2 and B0 from 2 to 4; 0B0 starts at 4. A unit of time is three columns.
TEST(TimelineTextTest, ShowsKindAndMicrobatchOverTime) {
  const ir::ComputeOrder order = order_of("1F1B", 2, 3);
  EXPECT_EQ(text_of(order, run(order), {}),
            "rank 0  F0 F1       B0--- F2 B1---    B2---\n"
            "rank 1     F0 B0--- F1 B1--- F2 B2---\n");
}

TEST(TimelineTextTest, ShowsStagesIfARankHasSeveral) {
  const ir::ComputeOrder order = order_of("ZBV", 1, 1);
  EXPECT_EQ(text_of(order, run(order), {}), "rank 0  0F0 1F0 1I0 1W0 0I0 0W0\n");
}

TEST(TimelineTextTest, ShowsLessIfThereIsLessRoom) {
  const ir::ComputeOrder order = order_of("1F1B", 2, 3);  // 12 units of time
  EXPECT_EQ(text_of(order, run(order), {.width = 8 + 24}),
            "rank 0  F0F1    B0- F2B1-   B2-\n"
            "rank 1    F0B0- F1B1- F2B2-\n");
  EXPECT_EQ(text_of(order, run(order), {.width = 8 + 12}),
            "rank 0  FF  B FB  B\n"
            "rank 1   FB FB FB\n");
}

// Rank 1 needs F0 and F1 of rank 0 before it runs a backward, and rank 0 the backward before F1.
ir::ComputeOrder stuck_order() {
  ir::ComputeOrder order = order_of("1F1B", 2, 2);
  using K = ir::ActionKind;
  order.rows = {
      {{K::kForward, 0, 0}, {K::kBackward, 0, 0}, {K::kForward, 0, 1}, {K::kBackward, 0, 1}},
      {{K::kForward, 1, 0}, {K::kForward, 1, 1}, {K::kBackward, 1, 0}, {K::kBackward, 1, 1}}};
  return order;
}

TEST(TimelineTextTest, MarksWhereRanksStop) {
  const ir::ComputeOrder order = stuck_order();
  const Standstill standstill = standstill_of(ChannelGraph::of_order(order), order);
  EXPECT_EQ(text_of(order, run(order), {.standstill = &standstill}),
            "rank 0  F0 !0B0\n"
            "rank 1     F0 !1F1\n");
  for (const size_t width : {20, 24, 40}) {
    std::istringstream lines(
        text_of(order, run(order), {.width = width, .standstill = &standstill}));
    for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), width);
  }
}

// In a program, rows of SENDs and RECVs stop too. A zero duration is not mistaken for an action
// that never runs.
TEST(TimelineTextTest, MarksWhereOperationsStop) {
  ir::Program program = program_of("1F1B", 2, 2);
  for (ir::Row& row : program.rows)
    std::erase_if(row, [](const ir::Action& action) {
      return ir::info(action.kind()).group == ir::ActionGroup::kDataParallel;
    });
  const ChannelGraph graph = ChannelGraph::of_program(program, ir::ChannelModel::kEdge, 0);
  const Standstill runs = standstill_of(graph, program);
  Costs costs;
  costs.forward = 0;
  EXPECT_EQ(text_of(program, run(program, costs), {.standstill = &runs}),
            text_of(program, run(program, costs), {}));
  // Rank 0 waits for the gradient before it sends F1, which rank 1 expects before its first B.
  using K = ir::ActionKind;
  program.rows = {{{K::kForward, 0, 0},
                   {K::kSendF, 0, 0},
                   {K::kRecvB, 0, 0},
                   {K::kBackward, 0, 0},
                   {K::kForward, 0, 1},
                   {K::kSendF, 0, 1},
                   {K::kRecvB, 0, 1},
                   {K::kBackward, 0, 1}},
                  {{K::kRecvF, 1, 0},
                   {K::kForward, 1, 0},
                   {K::kRecvF, 1, 1},
                   {K::kForward, 1, 1},
                   {K::kBackward, 1, 0},
                   {K::kSendB, 1, 0},
                   {K::kBackward, 1, 1},
                   {K::kSendB, 1, 1}}};
  const ChannelGraph dead = ChannelGraph::of_program(program, ir::ChannelModel::kEdge, 0);
  const Standstill standstill = standstill_of(dead, program);
  EXPECT_EQ(text_of(program, run(program), {.comms = true, .standstill = &standstill}),
            "rank 0  F0 !0B0\n"
            "  send     0 !0SEND_F1\n"
            "  recv  !0RECV_B0\n"
            "rank 1     F0 !1F1\n"
            "  send  !1SEND_B0\n"
            "  recv     0 !1RECV_F1\n");
}

// The last block of a coloured line is as wide as the others.
TEST(TimelineTextTest, ColorsTheWholeOfTheLastAction) {
  const ir::ComputeOrder order = order_of("1F1B", 1, 1);
  EXPECT_EQ(text_of(order, run(order), {.color = true}),
            "rank 0  \x1B[0;7;34mF0\x1B[0m \x1B[0;7;32mB0   \x1B[0m\n");
}

TEST(SvgTest, DrawsWhoWaitsForWhom) {
  const ir::ComputeOrder order = stuck_order();
  const Standstill standstill = standstill_of(ChannelGraph::of_order(order), order);
  std::ostringstream with, without;
  print_svg(order, run(order), "stuck", "", with, &standstill);
  print_svg(order, run(order), "stuck", "", without);
  EXPECT_EQ(without.str().find("waits for"), std::string::npos);
  EXPECT_EQ(without.str().find("dasharray"), std::string::npos);
  const auto count = [&](std::string_view text) {
    size_t found = 0;
    const std::string svg = with.str();
    for (size_t at = svg.find(text); at != std::string::npos; at = svg.find(text, at + 1)) ++found;
    return found;
  };
  EXPECT_EQ(count("dasharray"), 2);      // a box per rank
  EXPECT_EQ(count("fill=\"none\""), 2);  // an arrow each way
  EXPECT_EQ(count("rank 0 stops before 0B0\n"), 1);
  EXPECT_EQ(count("`0B0` on rank 0 waits for `1B0` on rank 1, which comes after `1F1`"), 2);
}

TEST(TimelineTextTest, FitsAnyWidth) {
  for (const schedules::ScheduleSpec* spec : schedules::all_schedules()) {
    const ir::Program program = program_of(spec->name, 4, 16);
    Costs costs;
    costs.link.latency = 0.3;
    const ir::Timeline timeline = run(program, costs);
    for (const size_t width : {20, 40, 80, 200}) {
      std::istringstream lines(text_of(program, timeline, {.width = width, .comms = true}));
      for (std::string line; std::getline(lines, line);)
        EXPECT_LE(line.size(), width) << spec->name;
    }
  }
}

TEST(TimelineTextTest, CommunicationHasSeparateRows) {
  const ir::Program program = program_of("1F1B", 2, 1);
  Costs costs;
  costs.link.latency = 1;
  EXPECT_EQ(text_of(program, run(program, costs), {.comms = true}),
            "rank 0  F0                B0---\n"
            "  send     0-\n"
            "  recv                 0-\n"
            "  data  U                      R\n"
            "  wait                         W\n"
            "rank 1        F0 B0---\n"
            "  send                 0-\n"
            "  recv     0-\n"
            "  data  U              R\n"
            "  wait                 W  0\n");
}

// ---- traces

TEST(TraceTest, EveryEventFollowsTheFormat) {
  using nlohmann::json;
  for (const schedules::ScheduleSpec* spec : schedules::all_schedules()) {
    SCOPED_TRACE(spec->name);
    const ir::Program program = program_of(spec->name, 4, 8);
    Costs costs;
    costs.unit = "ms";
    costs.link.latency = 0.25;
    costs.activation_bytes = 10;
    std::ostringstream out;
    const ir::Timeline timeline = run(program, costs);
    print_trace(program, costs, timeline, out);
    const json trace = json::parse(out.str());
    size_t actions = 0, sends = 0;
    for (const ir::Row& row : program.rows) {
      actions += row.size();
      for (const ir::Action& action : row) sends += ir::is_send(action.kind());
    }
    std::map<std::string, size_t> phases;
    std::set<std::pair<int, int>> tracks;
    std::map<int, std::pair<double, double>> flows;
    for (const json& event : trace["traceEvents"]) {
      const std::string phase = event.at("ph");
      ++phases[phase];
      const int rank = event.at("pid");
      EXPECT_TRUE(rank >= 0 && rank < 4);
      EXPECT_FALSE(event.at("name").get<std::string>().empty());
      if (phase == "M") {
        EXPECT_FALSE(event.at("args").at("name").get<std::string>().empty());
        if (event.at("name") == "thread_name") tracks.emplace(rank, event.at("tid"));
        continue;
      }
      EXPECT_GE(event.at("ts").get<double>(), 0);
      if (phase == "X") {
        EXPECT_TRUE(tracks.contains({rank, event.at("tid")}));
        const auto step = event.at("args").at("step").get<size_t>();
        const ir::Interval& interval = timeline.at(static_cast<size_t>(rank), step);
        EXPECT_EQ(event.at("name"), ir::to_string(program.rows[static_cast<size_t>(rank)][step]));
        EXPECT_DOUBLE_EQ(event.at("ts").get<double>(), 1000 * interval.start);
        EXPECT_DOUBLE_EQ(event.at("dur").get<double>(), 1000 * interval.duration());
      } else if (phase == "s") {
        flows[event.at("id")].first = event.at("ts");
      } else if (phase == "f") {
        EXPECT_EQ(event.at("bp"), "e");
        flows[event.at("id")].second = event.at("ts");
      } else {
        EXPECT_EQ(phase, "C");
        EXPECT_EQ(event.at("args").size(), 1u);
        EXPECT_TRUE(event.at("args").front().is_number());
      }
    }
    EXPECT_EQ(phases["X"], actions);
    EXPECT_EQ(phases["s"], sends);
    EXPECT_EQ(phases["f"], sends);
    EXPECT_EQ(flows.size(), sends);
    for (const auto& [id, times] : flows) EXPECT_LE(times.first, times.second);
  }
}

// Both streams of a compound and the copies are tracks of their rank.
TEST(TraceTest, HasTracksOfTheWorkBesideTheActions) {
  using nlohmann::json;
  const ir::Program program = program_of("1F1B", 2, 2);
  ir::Timeline timeline = run(program);
  const ir::ActionPart f0(ir::ActionKind::kForward, 1, 0), f1(ir::ActionKind::kForward, 1, 1);
  timeline.add({1, ir::WorkTrack::kToHost, f1, {5, 6}});
  timeline.add({1, ir::WorkTrack::kToHost, f0, {3, 3.5}});
  timeline.add({1, ir::WorkTrack::kCompute2, f1, {4, 5}});
  timeline.add({0, ir::WorkTrack::kCompute2, {ir::ActionKind::kForward, 0, 1}, {1, 2}});
  std::ostringstream out;
  print_trace(program, {.unit = "us"}, timeline, out);
  std::map<std::pair<int, int>, std::string> names;
  std::vector<std::string> found;
  const json trace = json::parse(out.str());
  for (const json& event : trace["traceEvents"]) {
    const std::pair track(event.at("pid").get<int>(), event.value("tid", -1));
    if (event.at("name") == "thread_name") {
      EXPECT_FALSE(names.contains(track));
      names[track] = event.at("args").at("name");
    } else if (event.at("ph") == "X" && !event.contains("args")) {
      found.push_back(fmt::format("{} {}: {} {} {}", track.first, names.at(track),
                                  event.at("name").get<std::string>(), event.at("ts").get<double>(),
                                  event.at("dur").get<double>()));
    }
  }
  EXPECT_EQ(found, (std::vector<std::string>{"0 compute 2: 0F1 1 1", "1 compute 2: 1F1 4 1",
                                             "1 to host: 1F0 3 0.5", "1 to host: 1F1 5 1"}));
}

// Rank 0 stops after its F0, whose activation stays; nothing is shown that never happens.
TEST(TraceTest, OfADeadlockEndsWhereItStops) {
  using nlohmann::json;
  const ir::ComputeOrder order = stuck_order();
  const Standstill standstill = standstill_of(ChannelGraph::of_order(order), order);
  std::ostringstream out;
  print_trace(order, {}, run(order), out, &standstill);
  std::multiset<std::string> events;
  const json trace = json::parse(out.str());
  for (const json& event : trace["traceEvents"]) {
    if (event.at("ph") == "M") continue;
    const json& args = event.at("args");
    events.insert(event.at("name").get<std::string>() + " " + event.at("ts").dump() +
                  (event.at("ph") == "X" ? "" : " " + args.front().dump()));
  }
  EXPECT_EQ(events,
            (std::multiset<std::string>{
                "0F0 0", "1F0 1000", "activations 0 1", "activations 1000 1",
                "stops before 0B0 1000 \"`0B0` on rank 0 waits for `1B0` on rank 1, which comes "
                "after `1F1`\"",
                "stops before 1F1 2000 \"`1F1` on rank 1 waits for `0F1` on rank 0, which comes "
                "after `0B0`\""}));
}

// ---- figures

TEST(SvgTest, HasOneRectanglePerPartThatTakesTime) {
  for (const schedules::ScheduleSpec* spec : schedules::all_schedules()) {
    const ir::ComputeOrder order = order_of(spec->name, 4, 8);
    std::ostringstream out;
    print_svg(order, run(order), "a <title> & more", "ms", out);
    const std::string svg = out.str();
    size_t parts = 0, legend = 0;
    std::set<ir::ActionKind> kinds;
    for (const ir::Row& row : order.rows) {
      for (const ir::Action& action : row) {
        parts += action.parts().size();
        for (const ir::ActionPart part : action.parts()) kinds.insert(part.kind());
      }
    }
    legend = kinds.size();
    size_t found = 0;
    for (size_t at = svg.find("<rect"); at != std::string::npos; at = svg.find("<rect", at + 1))
      ++found;
    EXPECT_EQ(found, parts + legend + 1) << spec->name;  // and the background
    EXPECT_NE(svg.find("a &lt;title&gt; &amp; more"), std::string::npos);
    EXPECT_EQ(svg.find("<script"), std::string::npos);
    EXPECT_EQ(svg.find("nan"), std::string::npos);
  }
}

TEST(DotTest, HasOneEdgePerDependency) {
  const ir::ComputeOrder order = order_of("1F1B", 2, 1);
  std::ostringstream out;
  print_dot(order, ChannelGraph::of_order(order), out);
  const std::string dot = out.str();
  EXPECT_NE(dot.find("a0 [label=\"0F0\""), std::string::npos);
  EXPECT_NE(dot.find("a0 -> a2 [style=bold"), std::string::npos);  // 0F0 to 1F0
  EXPECT_NE(dot.find("a2 -> a3;"), std::string::npos);             // 1F0 to 1B0
  EXPECT_NE(dot.find("a3 -> a1 [style=bold"), std::string::npos);  // 1B0 to 0B0
}

TEST(DotTest, MarksTheCycleOfADeadlock) {
  const ir::ComputeOrder order = stuck_order();
  const ChannelGraph graph = ChannelGraph::of_order(order);
  const Standstill standstill = standstill_of(graph, order);
  std::ostringstream out;
  print_dot(order, graph, out, &standstill);
  const std::string dot = out.str();
  // 0B0 is a1 and 1F1 is a5; 0F0 runs, and 1B1 is not on the cycle.
  EXPECT_NE(dot.find("a5 -> a1 [color=\"#e00000\""), std::string::npos);
  EXPECT_NE(dot.find("a1 -> a5 [color=\"#e00000\""), std::string::npos);
  const auto line_of = [&](const std::string& node) {
    const size_t at = dot.find("    " + node + " [label");
    return dot.substr(at, dot.find('\n', at) - at);
  };
  for (const char* node : {"a1", "a5"})
    EXPECT_NE(line_of(node).find("color=\"#e00000\", penwidth=3"), std::string::npos) << node;
  for (const char* node : {"a2", "a3", "a6", "a7"})
    EXPECT_NE(line_of(node).find("dashed"), std::string::npos) << node;
  for (const char* node : {"a0", "a4"})
    EXPECT_NE(line_of(node).find("fontcolor=\"#999999\""), std::string::npos) << node;
}

TEST(PaletteTest, EveryKindHasARowThatTheLegendLists) {
  std::set<const Paint*> listed;
  for (const Paint& paint : palette()) listed.insert(&paint);
  EXPECT_EQ(listed.size(), 10U);
  for (const ir::ActionKindInfo& row : ir::action_kinds()) {
    EXPECT_TRUE(listed.contains(&paint_of(row.kind))) << row.token;
    EXPECT_NE(&paint_of(row.kind), &paint_of(ir::ActionKind::kIdle)) << row.token;
  }
}

// ---- differences

ir::Row row(std::initializer_list<const char*> texts) {
  ir::Row actions;
  for (const char* text : texts) {
    ir::Action action;
    EXPECT_FALSE(ir::parse_action(text, &action));
    actions.push_back(action);
  }
  return actions;
}

TEST(DiffTest, RemovedAddedAndTheFewestMoved) {
  const RowChange change = change_of(row({"0F0", "0F1", "0F2", "0F3", "0B0"}),
                                     row({"0F1", "0F2", "0F0", "0F3", "0I0", "0W0"}));
  EXPECT_EQ(change.removed, row({"0B0"}));
  EXPECT_EQ(change.added, row({"0I0", "0W0"}));
  EXPECT_EQ(change.moved, row({"0F0"}));
}

TEST(DiffTest, RepeatedActionsAreMatchedByOccurrence) {
  const RowChange change = change_of(row({"0UNSHARD", "0F0", "0RESHARD", "0UNSHARD", "0F1"}),
                                     row({"0UNSHARD", "0F0", "0F1"}));
  EXPECT_EQ(change.removed, row({"0RESHARD", "0UNSHARD"}));
  EXPECT_TRUE(change.added.empty() && change.moved.empty());
}

TEST(DiffTest, IdleSlotsAreIgnored) {
  ir::Row with_idle = row({"0F0", "0B0"});
  with_idle.insert(with_idle.begin() + 1, ir::Action());
  EXPECT_TRUE(change_of(row({"0F0", "0B0"}), with_idle).empty());
}

}  // namespace
}  // namespace pipewright::schedule
