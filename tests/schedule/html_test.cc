// The data of the interactive page, decoded here from its documented encoding: nothing of a
// schedule is lost, times are exact, dependencies are those of the graph, and files stay small.
#include "pipewright/schedule/views/html.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <sstream>

#include "pipewright/ir/text/action_text.h"
#include "pipewright/schedule/lowering/lower.h"
#include "pipewright/schedule/simulate/memory_model.h"
#include "pipewright/schedule/simulate/simulate.h"
#include "pipewright/schedules/registry.h"

namespace pipewright::schedule {
namespace {

using nlohmann::json;

ir::ComputeOrder order_of(std::string_view name, int ranks, int microbatches) {
  const schedules::ScheduleSpec& spec = *schedules::find_schedule(name);
  return schedules::make_order(spec, {ranks, schedules::default_stages(spec, ranks), microbatches});
}

ir::Program program_of(const ir::ComputeOrder& order, const ir::Lowering& policies = {}) {
  ir::Diagnostics diagnostics;
  return *lower(order, policies, &diagnostics);
}

// A schedule, its times, and the page that was printed of them.
struct Page {
  Page(ir::Schedule of, ChannelGraph with, Costs at, const std::string& title = "title")
      : schedule(std::move(of)),
        graph(std::move(with)),
        costs(std::move(at)),
        timeline(simulate(graph, schedule, costs)) {
    std::ostringstream out;
    const HtmlRun runs[] = {{title, schedule, costs, graph, timeline}};
    print_html(runs, out);
    text = out.str();
    const std::string opening = "<script type=\"application/json\" id=\"data\">";
    const size_t begin = text.find(opening) + opening.size();
    data = json::parse(text.substr(begin, text.find("</script>", begin) - begin));
  }
  static Page of(const ir::ComputeOrder& order, const Costs& costs = {}) {
    return {order, ChannelGraph::of_order(order), costs};
  }
  static Page of(const ir::Program& program, const Costs& costs, ir::ChannelCapacity capacity) {
    return {program, ChannelGraph::of_program(program, ir::ChannelModel::kEdge, capacity), costs};
  }

  const json& run() const { return data["runs"][0]; }

  ir::Schedule schedule;
  ChannelGraph graph;
  Costs costs;
  ir::Timeline timeline;
  std::string text;
  json data;
};

std::string token_of(const Page& page, char letter) {
  return page.data["kinds"][std::string(1, letter)]["token"];
}

std::string part_text(const std::string& token, int stage, int microbatch) {
  return std::to_string(stage) + token + (microbatch < 0 ? "" : std::to_string(microbatch));
}

// Decodes everything and compares it with the schedule, the timeline and the graph.
void expect_faithful(const Page& page) {
  const json& run = page.run();
  const double per_unit = run["per_unit"];
  const double end = ir::span_of(page.schedule.rows, page.timeline).end;
  const std::vector<double> slacks = slack_of(page.graph, page.schedule, page.costs, page.timeline);
  ASSERT_EQ(run["ranks"].size(), page.schedule.rows.size());
  for (size_t rank = 0; rank < page.schedule.rows.size(); ++rank) {
    const ir::Row& row = page.schedule.rows[rank];
    const json& columns = run["ranks"][rank];
    const std::string kinds = columns["kinds"];
    ASSERT_EQ(kinds.size(), row.size());
    size_t column = 0, compound = 0, next = 0;
    int64_t compute_end = 0;
    uint32_t compute = ChannelGraph::kNone;
    for (size_t step = 0; step < row.size(); ++step) {
      if (row[step].is_idle()) {
        EXPECT_EQ(kinds[step], '.');
        continue;
      }
      const std::string token = token_of(page, kinds[step]);
      const int stage = columns["stages"][column], microbatch = columns["microbatches"][column];
      if (row[step].is_compound()) {
        const std::string letters = columns["compounds"][compound];
        EXPECT_EQ("(" + part_text(token_of(page, letters[0]), stage, microbatch) + ";" +
                      part_text(token_of(page, letters[1]), columns["compounds"][compound + 1],
                                columns["compounds"][compound + 2]) +
                      ")" + token,
                  ir::to_string(row[step]));
        compound += 3;
      } else {
        EXPECT_EQ(part_text(token, stage, microbatch), ir::to_string(row[step]));
      }
      const int64_t start = compute_end + columns["starts"][column].get<int64_t>();
      const int64_t stop = start + columns["durations"][column].get<int64_t>();
      const ir::Interval& interval = page.timeline.at(rank, step);
      EXPECT_NEAR(static_cast<double>(start) / per_unit, interval.start, 1e-8 * end);
      EXPECT_NEAR(static_cast<double>(stop) / per_unit, interval.end, 1e-8 * end);
      const uint32_t number = page.graph.number_of(rank, step);
      const int64_t slack = columns["slacks"][column];
      EXPECT_EQ(slack == 0, slacks[number] == 0);
      EXPECT_NEAR(static_cast<double>(slack) / per_unit, slacks[number], 1e-8 * end);

      std::vector<uint32_t> found, expected;
      for (const Dependency& dependency : page.graph.dependencies_of(number))
        expected.push_back(dependency.action);
      const bool is_posted =
          page.graph.node(number) != ChannelGraph::Node::kReceive || !run["rendezvous"].get<bool>();
      if (is_posted && compute != ChannelGraph::kNone) found.push_back(compute);
      for (; columns["dependencies"][next] != 0; ++next)
        found.push_back(number - columns["dependencies"][next].get<int>());
      ++next;
      std::ranges::sort(found);
      std::ranges::sort(expected);
      expected.erase(std::unique(expected.begin(), expected.end()), expected.end());
      found.erase(std::unique(found.begin(), found.end()), found.end());
      EXPECT_EQ(found, expected) << ir::to_string(row[step]);
      if (ir::is_compute(row[step].kind()) || ir::is_wait(row[step].kind())) {
        compute_end = stop;
        compute = number;
      }
      ++column;
    }
    EXPECT_EQ(column, columns["stages"].size());
    EXPECT_EQ(next, columns["dependencies"].size());
    EXPECT_EQ(compound, columns["compounds"].size());
  }
}

TEST(HtmlTest, HoldsEveryScheduleExactly) {
  for (const schedules::ScheduleSpec* spec : schedules::all_schedules()) {
    SCOPED_TRACE(spec->name);
    const ir::ComputeOrder order = order_of(spec->name, 4, 8);
    Costs costs;
    costs.forward = 18.522;
    costs.link.latency = 0.601;
    expect_faithful(Page::of(order));
    expect_faithful(Page::of(order, costs));
    for (const ir::ChannelCapacity capacity : {0u, 1u, ir::kUnboundedCapacity})
      expect_faithful(Page::of(program_of(order), costs, capacity));
  }
}

TEST(HtmlTest, ShowsIdleSlots) {
  ir::ComputeOrder order = order_of("1F1B", 2, 2);
  order.rows[1].insert(order.rows[1].begin(), ir::Action());
  const Page page = Page::of(order);
  EXPECT_EQ(page.run()["ranks"][1]["kinds"].get<std::string>()[0], '.');
  expect_faithful(page);
}

// Whole costs are whole ticks, and costs with three decimals take three more digits.
TEST(HtmlTest, TimesHaveAsFewDigitsAsTheyNeed) {
  EXPECT_EQ(Page::of(order_of("1F1B", 4, 8)).run()["per_unit"], 1.0);
  Costs costs;
  costs.forward = 18.522;
  EXPECT_EQ(Page::of(order_of("1F1B", 4, 8), costs).run()["per_unit"], 1000.0);
  costs.forward = 1.0 / 3;  // no power of ten is enough: nine digits
  EXPECT_EQ(Page::of(order_of("1F1B", 4, 8), costs).run()["per_unit"], 1e7);
  costs = {};
  costs.forward = 1e15;
  const Page huge = Page::of(order_of("1F1B", 4, 8), costs);
  EXPECT_LT(huge.run()["end"].get<double>(), 9007199254740992.0);  // exact in JavaScript
}

// 1F1B on 2 ranks with 2 microbatches: on rank 0, forwards start at 0 and 1, backwards end at 6
// and 9.
TEST(HtmlTest, HoldsTheMemoryCurve) {
  Costs costs;
  const Page without = Page::of(order_of("1F1B", 2, 2), costs);
  EXPECT_EQ(without.run()["ranks"][0]["activations"], json({0, 1, 1, 1, 5, -1, 3, -1}));
  EXPECT_TRUE(without.run()["ranks"][0]["bytes"].is_null());
  costs.activation_bytes = 100;
  const Page with = Page::of(order_of("1F1B", 2, 2), costs);
  EXPECT_EQ(with.run()["ranks"][0]["bytes"], json({0, 100, 1, 100, 5, -100, 3, -100}));
}

// A schedule's name comes from a file, which must not be able to end the script.
TEST(HtmlTest, EscapesWhatAFileNames) {
  const ir::ComputeOrder order = order_of("1F1B", 2, 2);
  const std::string title = "</script><script>alert(1)</script> \"quoted\" \\";
  const Page page(order, ChannelGraph::of_order(order), {}, title);
  EXPECT_EQ(page.run()["title"], title);
  EXPECT_EQ(page.text.find("<script>alert"), std::string::npos);
}

TEST(HtmlTest, NeedsNothingElse) {
  const Page page = Page::of(order_of("1F1B", 2, 2));
  for (const char* reference : {"http:", "https:", "src=", "@import", "url("})
    EXPECT_EQ(page.text.find(reference), std::string::npos) << reference;
}

TEST(HtmlTest, StaysSmall) {
  constexpr size_t kPage = 60'000;
  Costs costs;
  costs.forward = 18.522;
  costs.backward_input = 18.086;
  costs.backward_weight = 9.337;
  costs.link.latency = 0.601;
  const ir::ComputeOrder order = order_of("ZBV", 16, 128);
  const Page drawn = Page::of(order, costs);
  EXPECT_LE(drawn.text.size(), kPage + 40 * drawn.graph.size());
  const Page program = Page::of(program_of(order), costs, 0);
  EXPECT_LE(program.text.size(), kPage + 40 * program.graph.size());
  EXPECT_LE(Page::of(order_of("1F1B", 1, 1)).text.size(), kPage);
}

}  // namespace
}  // namespace pipewright::schedule
