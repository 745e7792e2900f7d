// Costs files: what is read, and one clear error for each thing that is wrong.
#include "pipewright/schedule/simulate/costs.h"

#include <gtest/gtest.h>

#include <fstream>
#include <regex>
#include <sstream>

#include "pipewright/schedule/simulate/costs_json.h"

namespace pipewright::schedule {
namespace {

Costs read(const std::string& text) {
  auto parsed = parse_costs(text);
  if (const auto* error = std::get_if<std::string>(&parsed)) {
    ADD_FAILURE() << *error;
    return {};
  }
  return std::get<Costs>(parsed);
}

std::string error_of(const std::string& text) {
  auto parsed = parse_costs(text);
  const auto* error = std::get_if<std::string>(&parsed);
  return error == nullptr ? "" : *error;
}

TEST(CostsTest, ReadsEveryKey) {
  Costs wanted;
  wanted.unit = "ms";
  wanted.forward = 2;
  wanted.backward_input = PerStage({1, 2.5});
  wanted.backward_weight = 3;
  wanted.unshard = 4;
  wanted.reshard = 5;
  wanted.reduce_grad = 6;
  wanted.rank_scale = {1, 1.5};
  wanted.microbatch_scale = {1, 2, 3};
  wanted.link = {0.5, 1e6};
  wanted.links[{1, 0}] = {0.5, 10};
  wanted.output_bytes = 7;
  wanted.input_gradient_bytes = 8;
  wanted.activation_bytes = 9;
  wanted.weight_input_bytes = 10;
  wanted.parameter_bytes = 11;
  wanted.gradient_bytes = 12;
  EXPECT_EQ(read(R"({"version": 1, "unit": "ms", "forward": 2, "backward_input": [1, 2.5],
                     "backward_weight": 3, "unshard": 4, "reshard": 5, "reduce_grad": 6,
                     "rank_scale": [1, 1.5], "microbatch_scale": [1, 2, 3],
                     "links": [{"from": 1, "to": 0, "bandwidth": 10}],
                     "latency": 0.5, "bandwidth": 1e6, "output_bytes": 7,
                     "input_gradient_bytes": 8, "activation_bytes": 9, "weight_input_bytes": 10,
                     "parameter_bytes": 11, "gradient_bytes": 12})"),
            wanted);
  EXPECT_EQ(read(R"({"version": 1})"), Costs());
}

TEST(CostsTest, EachMistakeIsNamed) {
  const std::pair<const char*, const char*> kCases[] = {
      {"[]", "costs are an object, found []"},
      {"{\n\"version\": 1,\n}", "line 3 is not JSON"},
      {"", "line 1 is not JSON"},
      {"{}", "`version` is missing; this is version 1"},
      {R"({"version": 2})", "`version` wants 1, found 2"},
      {R"({"version": 1, "foward": 1})", "there is no key `foward`; did you mean `forward`?"},
      {R"({"version": 1, "forward": "1"})",
       "`forward` wants 0, or numbers from 1e-12 to 1e+18, found \"1\""},
      {R"({"version": 1, "forward": -1})",
       "`forward` wants 0, or numbers from 1e-12 to 1e+18, found -1"},
      {R"({"version": 1, "forward": [1, null]})",
       "`forward` wants 0, or numbers from 1e-12 to 1e+18, found null"},
      {R"({"version": 1, "forward": 1e-13})",
       "`forward` wants 0, or numbers from 1e-12 to 1e+18, found 1e-13"},
      {R"({"version": 1, "forward": 1e400})", "a number is too large"},
      {R"({"version": 1, "unit": [[[[[[]]]]]]})", "no value is nested so deep"},
      {R"({"version": 1, "forward": []})", "`forward` wants a list of numbers, found []"},
      {R"({"version": 1, "rank_scale": 2})", "`rank_scale` wants a list of numbers, found 2"},
      {R"({"version": 1, "bandwidth": 0})",
       "`bandwidth` wants bytes a unit of time, more than 0, found 0"},
      {R"({"version": 1, "unit": "a b"})",
       "`unit` wants a word of up to 16 letters, found \"a b\""},
      {R"({"version": 1, "links": {}})", "`links` wants a list, found {}"},
      {R"({"version": 1, "links": [{"from": 0}]})",
       "`links` wants objects with `from` and `to`, found {\"from\":0}"},
      {R"({"version": 1, "links": [{"from": 0, "to": -1}]})",
       "`to` of a link wants a rank, found -1"},
      {R"({"version": 1, "links": [{"from": 0, "to": 1}, {"from": 0, "to": 1}]})",
       "`links` has two from rank 0 to rank 1"},
      {R"({"version": 1, "links": [{"from": 0, "to": 1, "latncy": 1}]})",
       "there is no key `latncy` in a link; did you mean `latency`?"},
      {R"({"version": 1, "forward": 1, "forward": 2})", "the key `forward` stands twice"},
  };
  for (const auto& [text, wanted] : kCases) EXPECT_EQ(error_of(text), wanted) << text;
}

TEST(CostsTest, ListsMustFitTheSchedule) {
  const ir::Placement placement = ir::Placement::loop(2, 4);
  Costs costs;
  EXPECT_FALSE(costs_error(costs, placement, 3));
  costs.backward_weight = PerStage({1, 2, 3});
  EXPECT_EQ(costs_error(costs, placement, 3),
            "`backward_weight` has 3 numbers, and the schedule has 4 stages: give one for each, or "
            "one for all");
  costs = {};
  costs.rank_scale = {1};
  EXPECT_EQ(
      costs_error(costs, placement, 3),
      "`rank_scale` has 1 numbers, and the schedule has 2 ranks: give one for each, or one for "
      "all");
  costs = {};
  costs.microbatch_scale = {1, 1};
  EXPECT_TRUE(costs_error(costs, placement, 3));
  costs = {};
  costs.links[{0, 2}] = {};
  EXPECT_EQ(costs_error(costs, placement, 3),
            "`links` has one from rank 0 to rank 2, and the schedule has 2 ranks");
}

TEST(CostsTest, DurationsByStageRankMicrobatchAndLink) {
  const ir::Placement placement = ir::Placement::loop(2, 4);
  Costs costs;
  costs.forward = PerStage({1, 2, 3, 4});
  costs.backward_input = 10;
  costs.backward_weight = 5;
  costs.rank_scale = {1, 2};
  costs.microbatch_scale = {1, 3};
  costs.link = {0.5, 10};
  costs.links[{1, 0}] = {2, 10};
  costs.output_bytes = 20;
  const CostTable table(costs, placement);
  using K = ir::ActionKind;
  EXPECT_EQ(table.duration(ir::Action(K::kForward, 2, 0)), 3);
  EXPECT_EQ(table.duration(ir::Action(K::kForward, 2, 1)), 9);
  EXPECT_EQ(table.duration(ir::Action(K::kForward, 3, 0)), 8);  // on the slow rank
  EXPECT_EQ(table.duration(ir::Action(K::kBackward, 0, 0)), 15);
  EXPECT_EQ(table.duration(ir::Action::overlap({K::kForward, 0, 1}, {K::kBackward, 2, 0})), 3 + 15);
  EXPECT_EQ(table.duration(ir::Action(K::kSendF, 0, 1)), 0.5 + 2);
  EXPECT_EQ(table.duration(ir::Action(K::kSendF, 1, 0)), 2 + 2);
  EXPECT_EQ(table.duration(ir::Action(K::kSendB, 2, 0)), 0.5);  // to rank 1, no bytes
  EXPECT_EQ(table.duration(ir::Action(K::kRecvF, 1, 0)), 0);
  scale_cost("COMM", 2, &costs);
  EXPECT_EQ(CostTable(costs, placement).duration(ir::Action(K::kSendF, 0, 0)), 5);
  EXPECT_FALSE(scale_cost("X", 2, &costs));
}

// The example of COSTS.md is one, and its table has each key that the parser knows.
TEST(CostsTest, TheDescriptionIsTrue) {
  std::ifstream file("schedule/simulate/COSTS.md");
  std::stringstream buffer;
  buffer << file.rdbuf();
  const std::string text = buffer.str();
  const size_t begin = text.find("```json\n") + 8;
  read(text.substr(begin, text.find("```", begin) - begin));
  for (const StageCost& field : stage_costs())
    EXPECT_NE(text.find(std::string("`").append(field.name) + "`"), std::string::npos)
        << field.name;
}

}  // namespace
}  // namespace pipewright::schedule
