// Reading and writing costs files, and the error for each possible mistake.
#include "pipewright/schedule/problem/costs.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <regex>
#include <sstream>
#include <string_view>
#include <vector>

#include "pipewright/schedule/compile/compile.h"
#include "pipewright/schedule/problem/costs_json.h"
#include "pipewright/schedules/registry.h"

namespace pipewright::schedule {
namespace {

// The errors, one per line: "1:16: PW082: unknown key `foward`".
std::string text_of(const ir::Diagnostics& diagnostics) {
  std::string text;
  for (const ir::Diagnostic& one : diagnostics.kept()) {
    text += text.empty() ? "" : "\n";
    if (one.place.offset)
      text += std::to_string(one.place.line) + ":" + std::to_string(one.place.column) + ": ";
    text += ir::code(one.rule) + ": " + one.message;
    if (!one.help.empty()) text += "; " + one.help;
  }
  return text;
}

Costs read(const std::string& text) {
  ir::Diagnostics diagnostics;
  const auto parsed = parse_costs({"costs.json", text}, &diagnostics);
  EXPECT_TRUE(parsed) << text_of(diagnostics);
  return parsed ? parsed->costs : Costs();
}

std::string error_of(const std::string& text) {
  ir::Diagnostics diagnostics;
  const bool parsed = parse_costs({"costs.json", text}, &diagnostics).has_value();
  EXPECT_EQ(parsed, !diagnostics.has_errors());
  return text_of(diagnostics);
}

std::string misfit_of(const Costs& costs, const CostPlaces& places = {}) {
  ir::Diagnostics diagnostics;
  const bool fits = check_costs(costs, places, ir::Placement::loop(2, 4), 3, &diagnostics);
  EXPECT_EQ(fits, !diagnostics.has_errors());
  return text_of(diagnostics);
}

TEST(CostsTest, ReadsEveryKey) {
  Costs wanted;
  wanted.unit = "ms";
  wanted.microbatch_size = 4;
  wanted.forward = 2;
  wanted.backward_input = PerStage({1, 2.5});
  wanted.backward_weight = 3;
  wanted.unshard = 4;
  wanted.reshard = 5;
  wanted.reduce_grad = 6;
  wanted.overlap = 0.25;
  wanted.rank_scale = {1, 1.5};
  wanted.microbatch_scale = {1, 2, 3};
  wanted.link = {0.5, 1e6};
  wanted.links[{1, 0}] = {std::nullopt, 10};
  wanted.output_bytes = 7;
  wanted.input_gradient_bytes = 8;
  wanted.activation_bytes = 9;
  wanted.weight_input_bytes = 10;
  wanted.parameter_bytes = 11;
  wanted.gradient_bytes = 12;
  EXPECT_EQ(
      read(
          R"({"version": 1, "unit": "ms", "microbatch_size": 4, "forward": 2, "backward_input": [1, 2.5],
                     "backward_weight": 3, "unshard": 4, "reshard": 5, "reduce_grad": 6,
                     "overlap": 0.25, "rank_scale": [1, 1.5], "microbatch_scale": [1, 2, 3],
                     "links": [{"from": 1, "to": 0, "bandwidth": 10}],
                     "latency": 0.5, "bandwidth": 1e6, "output_bytes": 7,
                     "input_gradient_bytes": 8, "activation_bytes": 9, "weight_input_bytes": 10,
                     "parameter_bytes": 11, "gradient_bytes": 12})"),
      wanted);
  EXPECT_EQ(read(R"({"version": 1})"), Costs());
}

// The cost and the peak memory per rank of a program that has what any cost is for: compounds,
// stages that recompute and, if they have sizes, offload, and UNSHARDs; or what memory it lacks.
// Empty if the costs do not fit it.
std::string outcome_of(const Costs& costs) {
  const auto compiled = [](std::vector<int> offload) {
    const schedules::Shape shape{.ranks = 4, .stages = 8, .microbatches = 8};
    ir::ComputeOrder order = schedules::make_order(*schedules::find_schedule("DualPipeV"), shape);
    order.recompute = {0, 5};
    order.offload = std::move(offload);
    return compile({.source = std::move(order)});
  };
  static const CompileResult plain = compiled({}), offloads = compiled({1});
  const SimulateResult result = simulate(costs.offload_bytes.at(1) > 0 ? offloads : plain,
                                         {.costs = costs, .with_bound = false});
  if (!result.ok()) {
    const ir::Diagnostic& first = result.diagnostics.kept()[0];
    return first.rule == ir::Rule::kMemoryExceeded ? first.message : "";
  }
  std::ostringstream out;
  out << result.simulation->report.cost;
  for (const RankReport& rank : result.simulation->report.ranks)
    out << ' ' << rank.peak_bytes.amount;
  return out.str();
}

// A key that only the table of keys knows would be read from files and ignored, or lost when costs
// are written.
TEST(CostsTest, EveryKeyIsWrittenAndSimulated) {
  const Costs base = read(R"({"version": 1, "overlap": 0.5, "output_bytes": 1, "bandwidth": 2,
      "activation_bytes": 10, "checkpoint_bytes": 5, "offload_bytes": [0, 1, 0, 0, 0, 0, 0, 0]})");
  // These two say what stages cost in the place of all other keys by stage.
  const Costs model = read(R"({"version": 1, "layers": [{"count": 16}]})");
  ASSERT_NE(outcome_of(base), "");
  ASSERT_NE(outcome_of(model), "");
  const std::string help = error_of(R"({"version": 1, "?": 1})");
  std::istringstream keys(help.substr(help.find("keys are ") + 9));
  size_t checked = 0;
  for (std::string key; std::getline(keys >> std::ws, key, ',');) {
    if (key == "version" || key == "unit" || key == "microbatch_size") continue;  // not costs
    if (key == "slice_scale") continue;                                           // slices_test
    const Costs& others = key == "layers" || key == "cut" ? model : base;
    std::ostringstream text;
    print_costs(others, text);
    const auto is_read = [&](const char* value) {
      auto file = nlohmann::json::parse(text.str());
      file[key] = nlohmann::json::parse(value);
      ir::Diagnostics diagnostics;
      const auto parsed = parse_costs({"costs.json", file.dump()}, &diagnostics);
      if (!parsed) return false;
      std::ostringstream again;
      print_costs(parsed->costs, again);
      EXPECT_EQ(read(again.str()), parsed->costs) << "`" << key << "` is lost in " << again.str();
      const std::string outcome = outcome_of(parsed->costs);
      return !outcome.empty() && outcome != outcome_of(others);
    };
    EXPECT_TRUE(is_read("1000") || is_read("1") || is_read("[1, 2, 3, 4]") ||
                is_read("[1, 2, 3, 4, 5, 6, 7, 8]") || is_read("[9, 1, 1, 1, 1, 1, 1, 1]") ||
                is_read(R"([{"from": 0, "to": 1, "latency": 1000}])") ||
                is_read(R"([{"count": 16, "forward": 2}])"))
        << "`" << key << "`: expected the simulator to read it";
    ++checked;
  }
  EXPECT_GT(checked, stage_costs().size()) << help;
}

// What is written reads back as equal costs: every key on its own, and all at once.
TEST(CostsTest, WritesWhatItReads) {
  const auto printed = [](const Costs& costs) {
    std::ostringstream out;
    print_costs(costs, out);
    return out.str();
  };
  EXPECT_EQ(printed({}), "{\n  \"version\": 1\n}\n");
  const double third = 1.0 / 3;
  std::vector<Costs> all;
  for (const StageCost& field : stage_costs()) {
    Costs one;
    one.*(field.values) = PerStage({third, 0, kLeastCost, kMostCost});
    all.push_back(one);
    one.*(field.values) = 1 + third;
    all.push_back(one);
  }
  Costs links;
  links.links = {{{0, 1}, {third, {}}}, {{1, 0}, {{}, 1e6}}, {{1, 2}, {2, 0.1}}};
  all.push_back(links);
  Costs overlap;
  overlap.overlap = third;
  all.push_back(overlap);
  all.push_back({.unit = "ms"});
  all.push_back({.microbatch_size = 3});
  all.push_back({.rank_scale = {1, third}});
  all.push_back({.microbatch_scale = {third, 2, 1}});
  all.push_back({.link = {third}});
  all.push_back({.link = {0, third}});
  for (const Costs& costs : all) {
    EXPECT_NE(costs, Costs());
    EXPECT_EQ(read(printed(costs)), costs) << printed(costs);
  }
  Costs together = links;
  together.unit = "us";
  together.forward = PerStage({1, third});
  together.link = {0.1, 3};
  together.rank_scale = {third};
  EXPECT_EQ(read(printed(together)), together) << printed(together);
}

// The costs of a microbatch grow with its size; those that a stage has once stay as they are.
TEST(CostsTest, ResizesMicrobatches) {
  const std::vector<std::string_view> once = {"unshard",     "reshard",         "reduce_grad",
                                              "recompute",   "parameter_bytes", "gradient_bytes",
                                              "shard_bytes", "optimizer_bytes"};
  Costs costs;
  costs.microbatch_size = 2;
  costs.link.latency = 5;
  for (const StageCost& field : stage_costs()) costs.*(field.values) = PerStage({4, 6});
  Costs layers;
  layers.microbatch_size = 2;
  layers.layers.resize(2);
  for (double& value : layers.layers[1].values) value = 4;
  resize_microbatches(3, &costs);
  resize_microbatches(3, &layers);
  EXPECT_EQ(costs.microbatch_size, 3);
  EXPECT_EQ(costs.link.latency, 5);
  EXPECT_EQ(layers.forward, PerStage(1)) << "of stages, beside layers";
  for (const StageCost& field : stage_costs()) {
    const bool grows = std::ranges::find(once, field.name) == once.end();
    EXPECT_EQ(costs.*(field.values), grows ? PerStage({6, 9}) : PerStage({4, 6})) << field.name;
    EXPECT_EQ(layers.layers[1][field.values], grows ? 6 : 4) << field.name;
  }
}

// Each with the place and the words of the first error. Text of the file in the parser's message
// must not be mistaken for its words.
TEST(CostsTest, SyntaxErrorsArePlain) {
  const std::pair<const char*, const char*> kCases[] = {
      {R"({"version": 1 "forward": 2})", "1:15: PW090: expected `,` or `}`, got `\"forward\"`"},
      {R"({"links": [1 2]})", "1:14: PW090: expected `,` or `]`, got `2`"},
      {R"({"version" 1})", "1:12: PW090: expected `:`, got `1`"},
      {R"({"version": 1} x)", "1:16: PW090: expected the end of the file, got `x`"},
      {R"({'version': 1})", "1:2: PW090: expected a key in double quotes, got `'`"},
      {R"({version: 1})", "1:2: PW090: expected a key in double quotes, got `version`"},
      {R"({"version": trux)", "1:13: PW090: expected a value, got `trux`"},
      {R"({"version": tru)", "1:13: PW090: expected a value, got `tru`"},
      {R"({"version": 1;})", "1:14: PW090: expected `,` or `}`, got `;`"},
      {R"({"version": NaN})", "1:13: PW090: expected a value, got `NaN`"},
      {R"({"version": 01})", "1:13: PW090: expected a number without leading zeros, got `01`"},
      {R"({"version": 1.})", "1:15: PW090: expected a digit after `.`, got `}`"},
      {R"({"version": -})", "1:14: PW090: expected a digit after `-`, got `}`"},
      {R"({"version": 1e+})", "1:16: PW090: expected a digit in the exponent, got `}`"},
      {R"({"unit": "ms)",
       "1:13: PW090: expected `\"` at the end of the string, got the end of the file"},
      {"{\"unit\": \"m\ns\"}",
       "1:12: PW090: expected an escape such as `\\n` in the string, got a line break"},
      {R"({"unit": "m\q"})",
       "1:13: PW090: expected one of `\"\\/bfnrtu` after the backslash, got `q`"},
      {R"({"unit": "m\u12"})", "1:16: PW090: expected 4 hexadecimal digits after `\\u`, got `\"`"},
      {R"({"unit": "\ud800"})",
       "1:17: PW090: expected two `\\u` escapes for this character (a surrogate pair), got `\"`"},
      {"{\"unit\": \"\xff\"}", "1:11: PW090: expected UTF-8, got `\\xFF`"},
      {R"({"must be escaped": "ill-formed UTF-8"; 1})",
       "1:39: PW090: expected `,` or `}`, got `;`"},
      {R"({"digit after '.'": tru})", "1:21: PW090: expected a value, got `tru`"},
  };
  for (const auto& [text, expected] : kCases) EXPECT_EQ(error_of(text), expected) << text;
}

TEST(CostsTest, EachMistakeIsNamedAtItsPlace) {
  const std::pair<const char*, const char*> kCases[] = {
      {"[]", "1:1: PW091: a costs file: expected an object, got `[]`"},
      {"{\n\"version\": 1,\n}", "3:1: PW090: expected a key in double quotes, got `}`"},
      {"", "1:1: PW090: expected a value, got the end of the file"},
      {"{}", "1:1: PW084: a costs file has a `version`, got none; write it as `\"version\": 1`"},
      {R"({"version": 2})", "1:13: PW081: `version`: expected 1, got `2`"},
      {R"({"version": 1, "foward": 1})",
       "1:16: PW082: unknown key `foward`; did you mean `forward`?"},
      {R"({"version": 1, "forward": "1"})",
       "1:27: PW091: `forward`: expected a number, or a list with one number per stage, got "
       "`\"1\"`"},
      {R"({"version": 1, "forward": -1})",
       "1:27: PW085: `forward`: expected 0 or a number from 1e-12 to 1e+18, got `-1`"},
      {R"({"version": 1, "forward": [1, null]})",
       "1:31: PW091: `forward`: expected 0 or a number from 1e-12 to 1e+18, got `null`"},
      {R"({"version": 1, "forward": 1e-13})",
       "1:27: PW085: `forward`: expected 0 or a number from 1e-12 to 1e+18, got `1e-13`"},
      {R"({"version": 1, "forward": 1e400})",
       "1:27: PW090: expected a number that fits a double, got `1e400`"},
      {R"({"version": 1, "forward": 1)",
       "1:28: PW090: expected `,` or `}`, got the end of the file"},
      {R"({"version": 1, "forward": tru})", "1:27: PW090: expected a value, got `tru`"},
      {R"({"version": 1, "unit": [[[[[[]]]]]]})",
       "1:27: PW091: expected values nested at most 4 deep, got more"},
      {R"({"version": 1, "forward": []})",
       "1:27: PW091: `forward`: expected a number, or a list with one number per stage, got `[]`"},
      {R"({"version": 1, "rank_scale": 2})",
       "1:30: PW091: `rank_scale`: expected a list with one factor per rank, got `2`"},
      {R"({"version": 1, "microbatch_scale": 2})",
       "1:36: PW091: `microbatch_scale`: expected a list with one factor per microbatch, got `2`"},
      {R"({"version": 1, "microbatch_size": 0})",
       "1:35: PW085: `microbatch_size`: expected a whole number from 1, got `0`"},
      {R"({"version": 1, "overlap": 1.5})",
       "1:27: PW085: `overlap`: expected 0 or a number from 1e-12 to 1, got `1.5`"},
      {R"({"version": 1, "overlap": [1]})",
       "1:27: PW091: `overlap`: expected 0 or a number from 1e-12 to 1, got `[1]`"},
      {R"({"version": 1, "bandwidth": 0})",
       "1:29: PW085: `bandwidth`: expected bytes per unit of time, above 0, got `0`"},
      {R"({"version": 1, "unit": "a b"})",
       "1:24: PW085: `unit`: expected a word of up to 16 letters, got `\"a b\"`"},
      {R"({"version": 1, "links": {}})", "1:25: PW091: `links`: expected a list, got `{}`"},
      {R"({"version": 1, "links": [{"from": 0}]})",
       "1:26: PW091: `links`: expected objects with `from` and `to`, got `{\"from\": 0}`"},
      {R"({"version": 1, "links": [{"from": 0, "to": -1, "latency": 1}]})",
       "1:44: PW085: `to` of a link: expected a rank, got `-1`"},
      {R"({"version": 1, "links": [{"from": 0, "to": 0, "latency": 1}]})",
       "1:26: PW085: a link: expected two different ranks, got `{\"from\": 0, \"to\": 0, "
       "\"latency\": 1}`"},
      {R"({"version": 1, "links": [{"from": 0, "to": 1}]})",
       "1:26: PW084: a link: expected `latency`, `bandwidth` or both, got `{\"from\": 0, \"to\": "
       "1}`"},
      {R"({"version": 1, "links": [{"from": 0, "to": 1, "latency": 1},
{"from": 0, "to": 1, "bandwidth": 1}]})",
       "2:1: PW083: `links` has two from rank 0 to rank 1"},
      {R"({"version": 1, "links": [{"from": 0, "to": 1, "latency": 1, "bandwith": 1}]})",
       "1:61: PW082: unknown key `bandwith` in a link; did you mean `bandwidth`?"},
      {R"({"version": 1, "forward": 1, "forward": 2})", "1:30: PW083: duplicate key `forward`"},
      // All errors are reported, not only the first.
      {"{\"version\": 3,\n \"forward\": -1, \"unshrd\": 0,\n \"links\": [{\"from\": 0.5, \"to\": "
       "1, \"latency\": 1}]}",
       "1:13: PW081: `version`: expected 1, got `3`\n"
       "2:13: PW085: `forward`: expected 0 or a number from 1e-12 to 1e+18, got `-1`\n"
       "2:17: PW082: unknown key `unshrd`; did you mean `unshard`?\n"
       "3:21: PW085: `from` of a link: expected a rank, got `0.5`"},
  };
  for (const auto& [text, wanted] : kCases) EXPECT_EQ(error_of(text), wanted) << text;
}

TEST(CostsTest, ListsMustFitTheSchedule) {
  Costs costs;
  EXPECT_EQ(misfit_of(costs), "");
  costs.backward_weight = PerStage({1, 2, 3});
  EXPECT_EQ(misfit_of(costs),
            "PW073: `backward_weight`: expected 4 numbers, one per stage, got 3; one number "
            "instead of the list holds for all stages");
  // One number in a list is not one number for all stages.
  costs.backward_weight = PerStage(std::vector<double>{3});
  EXPECT_EQ(misfit_of(costs),
            "PW073: `backward_weight`: expected 4 numbers, one per stage, got 1; one number "
            "instead of the list holds for all stages");
  costs = {};
  costs.rank_scale = {1};
  EXPECT_EQ(misfit_of(costs), "PW073: `rank_scale`: expected 2 numbers, one per rank, got 1");
  costs = {};
  costs.microbatch_scale = {1, 1};
  EXPECT_EQ(misfit_of(costs),
            "PW073: `microbatch_scale`: expected 3 numbers, one per microbatch, got 2");
  costs = {};
  costs.links[{0, 2}] = {};
  EXPECT_EQ(misfit_of(costs),
            "PW073: a link from rank 0 to rank 2: expected ranks 0 to 1, got rank 2");
  // Numbers that cannot occur in a file, set in memory.
  costs = {};
  costs.forward = -1;
  costs.overlap = 2;
  costs.link.bandwidth = 0;
  EXPECT_EQ(misfit_of(costs),
            "PW085: `forward`: expected 0 or a number from 1e-12 to 1e+18, got -1\n"
            "PW085: `overlap`: expected 0 or a number from 1e-12 to 1, got 2\n"
            "PW085: `bandwidth`: expected bytes per unit of time, above 0, got 0");
}

TEST(CostsTest, AListOfOneIsForOneStage) {
  ir::Diagnostics diagnostics;
  const auto parsed =
      parse_costs({"costs.json", R"({"version": 1, "forward": [3]})"}, &diagnostics);
  ASSERT_TRUE(parsed);
  const auto fits = [&](const ir::Placement& placement) {
    return check_costs(parsed->costs, parsed->places, placement, 1, &diagnostics);
  };
  EXPECT_TRUE(fits(ir::Placement::loop(1, 1)));
  EXPECT_FALSE(fits(ir::Placement::loop(1, 2)));
}

TEST(CostsTest, WhatDoesNotFitHasItsPlaceInTheFile) {
  ir::Diagnostics diagnostics;
  const auto parsed = parse_costs({"costs.json",
                                   "{\"version\": 1,\n \"forward\": [1, 2],\n"
                                   " \"links\": [{\"from\": 5, \"to\": 0, \"latency\": 1}]}"},
                                  &diagnostics);
  ASSERT_TRUE(parsed);
  EXPECT_EQ(misfit_of(parsed->costs, parsed->places),
            "2:13: PW073: `forward`: expected 4 numbers, one per stage, got 2; one number instead "
            "of the list holds for all stages\n"
            "3:12: PW073: a link from rank 5 to rank 0: expected ranks 0 to 1, got rank 5");
  EXPECT_EQ(parsed->places.values.at("forward").length, 6u);
}

// Each number is valid; what they are together is not.
TEST(CostsTest, ProductsOfFactorsAreCostsToo) {
  EXPECT_EQ(misfit_of({.forward = PerStage({1, 1e18, 1e18, 1}), .microbatch_scale = {1, 10, 0}}),
            "PW085: F of stage 1, 1e+18 (`forward`, --forward, --scale F) x 10 (`microbatch_scale` "
            "of microbatch 1): expected 0 or a number from 1e-12 to 1e+18, got 1e+19");
  EXPECT_EQ(misfit_of({.backward_weight = 1e-12, .rank_scale = {1, 0.5}}),
            "PW085: W of stage 1, 1e-12 (`backward_weight`, --backward-weight, --scale W or B) x "
            "0.5 (`rank_scale`, --slow 1): expected 0 or a number from 1e-12 to 1e+18, got 5e-13");
  EXPECT_EQ(misfit_of({.forward = 10, .recompute = 1e18}),
            "PW085: the recomputation of stage 0, 1e+18 (`recompute`) x 10 (`forward`, --forward, "
            "--scale F): expected 0 or a number from 1e-12 to 1e+18, got 1e+19");
  EXPECT_EQ(misfit_of({.link = {0, 1e-3}, .output_bytes = 1e18}),
            "PW085: a transfer from rank 0 to rank 1, 1e+18 bytes (`output_bytes`) by `bandwidth` "
            "(--scale COMM): expected at most 1e+18, got 1e+21");
  EXPECT_EQ(misfit_of({.forward = 1e18,
                       .backward_input = 1e18,
                       .backward_weight = 0,
                       .rank_scale = {1, 1e-12},
                       .microbatch_scale = {0, 1, 1}}),
            "");
}

TEST(CostsTest, FactorsThatMultiplyToTooMuch) {
  const ir::Placement placement = ir::Placement::loop(2, 4);
  const auto error_after = [&](const char* kind, double factor, int times) {
    Costs costs = {.link = {1, 1e6}};
    costs.links[{1, 0}] = {.latency = 0.5};
    for (int k = 0; k < times; ++k) EXPECT_TRUE(scale_cost(kind, factor, &costs));
    ir::Diagnostics diagnostics;
    const bool fits = check_factors(costs, placement, &diagnostics);
    EXPECT_EQ(fits, !diagnostics.has_errors());
    return text_of(diagnostics);
  };
  const std::string expected = ": expected 0 or a number from 1e-12 to 1e+18, got ";
  EXPECT_EQ(error_after("F", 1e18, 1), "");
  EXPECT_EQ(error_after("F", 1e18, 18),
            "PW085: `forward` of stage 0 after --scale F" + expected + "inf");
  EXPECT_EQ(error_after("B", 1e-9, 2),
            "PW085: `backward_input` of stage 0 after --scale I or B" + expected + "1e-18\n" +
                "PW085: `backward_weight` of stage 0 after --scale W or B" + expected + "1e-18");
  EXPECT_EQ(error_after("F", 0, 1), "");
  EXPECT_EQ(error_after("COMM", 1e18, 20),
            "PW085: `latency` of all links after --scale COMM" + expected + "inf\n" +
                "PW085: `bandwidth` of all links after --scale COMM: expected bytes per unit of "
                "time, above 0, got 0\n" +
                "PW085: `latency` of the link from rank 1 to rank 0 after --scale COMM" + expected +
                "inf");
  Costs costs;
  for (int k = 0; k < 18; ++k) slow_rank(1, 1e18, placement, &costs);
  ir::Diagnostics diagnostics;
  EXPECT_FALSE(check_factors(costs, placement, &diagnostics));
  EXPECT_EQ(text_of(diagnostics),
            "PW085: `rank_scale` of rank 1 after --slow 1" + expected + "inf");
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
  costs.links[{1, 0}] = {.latency = 2};  // and the bandwidth of the others
  costs.output_bytes = 20;
  const CostTable table(costs, placement);
  using K = ir::ActionKind;
  EXPECT_EQ(table.duration(ir::Action(K::kForward, 2, 0), 0), 3);
  EXPECT_EQ(table.duration(ir::Action(K::kForward, 2, 1), 0), 9);
  EXPECT_EQ(table.duration(ir::Action(K::kForward, 3, 0), 1), 8);  // on the slow rank
  EXPECT_EQ(table.duration(ir::Action(K::kBackward, 0, 0), 0), 15);
  EXPECT_EQ(table.duration(ir::Action::overlap({K::kForward, 0, 1}, {K::kBackward, 2, 0}), 0),
            3 + 15);
  EXPECT_EQ(table.duration(ir::Action(K::kSendF, 0, 1), 0), 0.5 + 2);
  EXPECT_EQ(table.duration(ir::Action(K::kSendF, 1, 0), 1), 2 + 2);
  EXPECT_EQ(table.duration(ir::Action(K::kSendB, 2, 0), 0), 0.5);  // to rank 1, no bytes
  EXPECT_EQ(table.duration(ir::Action(K::kRecvF, 1, 0), 1), 0);
  scale_cost("COMM", 2, &costs);
  EXPECT_EQ(CostTable(costs, placement).duration(ir::Action(K::kSendF, 0, 0), 0), 5);
  EXPECT_FALSE(scale_cost("X", 2, &costs));
}

// The example in COSTS.md is valid, and the table there has every key that the parser accepts.
TEST(CostsTest, TheDescriptionIsTrue) {
  std::ifstream file("schedule/problem/COSTS.md");
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
