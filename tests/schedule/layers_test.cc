// Layers in costs, and how cuts make stages of them.
#include "pipewright/schedule/problem/layers.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <sstream>
#include <string>
#include <vector>

#include "pipewright/schedule/compile/compile.h"
#include "pipewright/schedule/problem/costs_json.h"

namespace pipewright::schedule {
namespace {

constexpr const char* kModel = R"({
  "version": 1,
  "layers": [
    {"forward": 0.5, "backward_input": 0, "output_bytes": 10, "parameter_bytes": 7},
    {"count": 3, "forward": 2, "output_bytes": 20, "input_gradient_bytes": 30, "activation_bytes": 5},
    {"forward": 4, "recompute": 0.5, "input_gradient_bytes": 40, "optimizer_bytes": 11}
  ]
})";

Costs parsed(const std::string& text) {
  ir::Diagnostics diagnostics;
  const ir::Source source{"costs.json", text};
  const auto result = parse_costs(source, &diagnostics);
  EXPECT_TRUE(result) << (diagnostics.total() ? diagnostics.kept()[0].message : "");
  return result ? result->costs : Costs();
}

std::string error_of(const Costs& costs, int stages, const Cut& own = {}) {
  ir::Diagnostics diagnostics;
  EXPECT_FALSE(cut_layers(costs, own, {}, stages, &diagnostics));
  return diagnostics.total() == 1 ? diagnostics.kept()[0].message : "not one error";
}

TEST(LayersTest, StagesAreSumsOfTheirLayers) {
  const Costs costs = parsed(kModel);
  EXPECT_EQ(num_layers(costs), 5);
  const Costs stages = cut_layers(costs, {2, 0, 3});
  EXPECT_EQ(stages.forward, PerStage({2.5, 0, 8}));
  EXPECT_EQ(stages.backward_input, PerStage({1, 0, 3}));
  EXPECT_EQ(stages.backward_weight, PerStage({2, 0, 3}));
  EXPECT_EQ(stages.output_bytes, PerStage({20, 20, 0}));          // of the last layer
  EXPECT_EQ(stages.input_gradient_bytes, PerStage({0, 30, 30}));  // of the first one
  EXPECT_EQ(stages.activation_bytes, PerStage({5, 0, 10}));
  EXPECT_EQ(stages.parameter_bytes, PerStage({7, 0, 0}));
  EXPECT_EQ(stages.optimizer_bytes, PerStage({0, 0, 11}));
  EXPECT_EQ(stages.recompute, PerStage({1, 1, 0.75}));  // (2 + 2 + 4/2) / 8
  EXPECT_TRUE(stages.layers.empty());
}

TEST(LayersTest, PrintAndParseAreInverse) {
  Costs costs = parsed(kModel);
  costs.cut = {3, 2};
  std::ostringstream out;
  print_costs(costs, out);
  EXPECT_EQ(parsed(out.str()), costs);
}

TEST(LayersTest, BalancesBlocksEvenlyOrByCost) {
  EXPECT_EQ(balanced_cut(7, 4), (Cut{1, 2, 2, 2}));
  EXPECT_EQ(balanced_cut(1, 3), (Cut{0, 0, 1}));
  EXPECT_EQ(balanced_cut(7, 1, {.output = 100}), Cut{7});
  EXPECT_EQ(balanced_cut(6, 3, {.output = 2}), (Cut{2, 3, 1}));
  EXPECT_EQ(balanced_cut(4, 3, {.output = 9}), (Cut{2, 2, 0}));
  // Against all splits.
  for (const double output : {0.0, 0.4, 1.7, 5.2}) {
    for (const double embedding : {0.0, 1.2}) {
      const PartCosts costs{embedding, 1, output};
      const auto worst = [&](Cut blocks) {
        const double first = embedding + static_cast<double>(blocks[0]);
        const double last = output + static_cast<double>(blocks[2]);
        return std::max({first, static_cast<double>(blocks[1]), last});
      };
      double best = 1e9;
      for (int first = 0; first <= 8; ++first) {
        for (int last = 0; first + last <= 8; ++last)
          best = std::min(best, worst({first, 8 - first - last, last}));
      }
      EXPECT_DOUBLE_EQ(worst(balanced_cut(8, 3, costs)), best) << embedding << " " << output;
    }
  }
}

TEST(LayersTest, RangesOfStages) {
  EXPECT_EQ(layer_ranges({2, 0, 3}), (std::vector<LayerRange>{{0, 2}, {2, 2}, {2, 5}}));
}

// What-if factors scale the layers, and leave what is per stage as by default.
TEST(LayersTest, Scale) {
  Costs costs = parsed(kModel);
  ASSERT_TRUE(scale_cost("F", 3, &costs));
  EXPECT_EQ(costs.forward, PerStage(1));
  EXPECT_EQ(cut_layers(costs, {2, 3}).forward, PerStage({7.5, 24}));
}

TEST(LayersTest, WhichCut) {
  Costs costs = parsed(kModel);
  ir::Diagnostics diagnostics;
  EXPECT_EQ(cut_layers(costs, {}, {}, 2, &diagnostics), cut_layers(costs, {3, 2}));
  EXPECT_EQ(cut_layers(costs, {1, 4}, {}, 2, &diagnostics), cut_layers(costs, {1, 4}));
  costs.cut = {5, 0};
  EXPECT_EQ(cut_layers(costs, {1, 4}, {}, 2, &diagnostics), cut_layers(costs, {5, 0}));
  EXPECT_EQ(cut_of(costs, {1, 4}, {}, 2, &diagnostics), costs.cut);
  EXPECT_EQ(cut_of({}, {1, 4}, {}, 2, &diagnostics), Cut()) << "no layers to cut";
  EXPECT_EQ(diagnostics.total(), 0U);
}

TEST(LayersTest, EvenAndLeastMaximum) {
  EXPECT_EQ(even_cut(10, 4), (Cut{3, 3, 2, 2}));
  Costs costs;
  costs.layers.resize(2);
  costs.layers[0].count = 6;
  costs.layers[1][&Costs::forward] = 4;  // a head of 6 where a layer is 3
  const Cut cut = least_maximum_cut(costs, ir::Placement::loop(2, 2));
  EXPECT_EQ(cut, (Cut{4, 3}));  // 12 and 12
  costs.rank_scale = {1, 3};
  EXPECT_EQ(least_maximum_cut(costs, ir::Placement::loop(2, 2)), (Cut{6, 1}));  // 18 and 18
  // Against all cuts into three.
  for (int heavy = 1; heavy < 9; ++heavy) {
    costs = Costs();
    costs.layers.resize(3);
    costs.layers[0].count = 3;
    costs.layers[1][&Costs::forward] = heavy;
    costs.layers[2].count = 4;
    const auto most = [&](const Cut& one) {
      const Costs stages = cut_layers(costs, one);
      double worst = 0;
      for (int stage = 0; stage < 3; ++stage)
        worst = std::max(worst, stages.forward.at(stage) + stages.backward_input.at(stage) +
                                    stages.backward_weight.at(stage));
      return worst;
    };
    double least = 1e9;
    for (int first = 0; first <= 8; ++first) {
      for (int second = 0; first + second <= 8; ++second)
        least = std::min(least, most({first, second, 8 - first - second}));
    }
    EXPECT_EQ(most(least_maximum_cut(costs, ir::Placement::loop(3, 3))), least) << heavy;
  }
}

TEST(LayersTest, Errors) {
  Costs costs = parsed(kModel);
  EXPECT_EQ(error_of(costs, 2, {1, 2}), "the cut 1,2: expected 5 layers in all, got 3");
  EXPECT_EQ(error_of(costs, 3, {3, 2}), "the cut 3,2: expected 3 numbers, one per stage, got 2");
  costs.forward = 3;
  EXPECT_EQ(error_of(costs, 2),
            "`forward` of stages: expected none beside `layers`, which have their own");
  Costs none;
  none.cut = {1, 1};
  EXPECT_EQ(error_of(none, 2), "`cut`: expected `layers` beside it, got none");
}

TEST(LayersTest, ASchedulesOwnCutDecides) {
  CompileRequest request = {.source = "1F1B", .shape = {.ranks = 2, .microbatches = 4}};
  request.level = ir::Level::kComputeOnly;
  const CompileResult even = compile(request);
  ASSERT_TRUE(even.ok());
  const Costs model = parsed(kModel);
  const auto cost = [&](const CompileResult& compiled) {
    return simulate(compiled, {.costs = model}).simulation->report.ranks[0].busy;
  };
  EXPECT_EQ(cost(even), 4 * (4.5 + 2 + 3));  // three layers
  ir::AnySchedule named = *even.schedule;
  std::get<ir::ComputeOrder>(named).cut = {1, 4};
  request.source = named;
  request.shape = {};
  EXPECT_EQ(cost(compile(request)), 4 * 1.5);  // one layer
  // And a program has it too.
  request.level = ir::Level::kComputeComms;
  EXPECT_EQ(compile(request).program().cut, (Cut{1, 4}));
}

}  // namespace
}  // namespace pipewright::schedule
