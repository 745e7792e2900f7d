// Balancing by the costs of embedding, blocks and output layer: estimated, and measured by a
// stopwatch that counts operators, of which some are dearer than the estimate knows.
#include "examples/part_costs.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <map>
#include <numeric>
#include <string>
#include <vector>

#include "tests/support/meter/calls.h"

namespace pipewright::examples {
namespace {

using tests::calls_of;

// An operator costs its price, all others nothing.
Stopwatch priced(const std::map<std::string, double>& prices) {
  return [prices](const std::function<void()>& work) {
    double sum = 0;
    for (const auto& [name, count] : calls_of(work)) {
      const auto price = prices.find(name);
      if (price != prices.end()) sum += count * price->second;
    }
    return sum;
  };
}

constexpr GptConfig kSmall{.layers = 9, .dim = 32, .context = 8};

// The least that the dearest of three stages can cost, of all splits.
double best_of_all(int64_t layers, const PartCosts& costs) {
  double best = std::numeric_limits<double>::infinity();
  for (int64_t first = 0; first <= layers; ++first) {
    for (int64_t last = 0; first + last <= layers; ++last)
      best = std::min(best, std::max({costs.embedding + costs.block * static_cast<double>(first),
                                      costs.block * static_cast<double>(layers - first - last),
                                      costs.output + costs.block * static_cast<double>(last)}));
  }
  return best;
}

// The dearest stage of a split.
double dearest(const schedule::Cut& blocks, const PartCosts& costs) {
  std::vector<double> stages;
  for (const int count : blocks) stages.push_back(costs.block * static_cast<double>(count));
  stages.front() += costs.embedding;
  stages.back() += costs.output;
  return *std::max_element(stages.begin(), stages.end());
}

TEST(PartCosts, EstimatedCountsTheOutputLayer) {
  // With a small width, it costs more than a block.
  GptConfig small{.layers = 4, .dim = 16, .context = 16};
  EXPECT_EQ(blocks_of_stages(small, 2), (schedule::Cut{2, 2}));
  small.costs = estimated_costs(small);
  EXPECT_EQ(blocks_of_stages(small, 2), (schedule::Cut{3, 1}));
}

// Each part runs once in its measurement, forward and backward, and no other part with it.
TEST(PartCosts, MeasuresEachPartAlone) {
  const auto costs_of = [](const GptConfig& config, const std::string& op) {
    return measured_costs(config, 2, at::kFloat, priced({{op, 1}}));
  };
  const auto expect = [&](const GptConfig& config, const std::string& op, double embedding,
                          double block, double output) {
    const PartCosts costs = costs_of(config, op);
    EXPECT_EQ(costs.embedding, embedding) << op;
    EXPECT_EQ(costs.block, block) << op;
    EXPECT_EQ(costs.output, output) << op;
  };
  expect(kSmall, "aten::embedding", 2, 0, 0);  // of tokens and positions
  expect(kSmall, "aten::embedding_dense_backward", 2, 0, 0);
  expect(kSmall, "aten::gelu", 0, 1, 0);
  expect(kSmall, "aten::gelu_backward", 0, 1, 0);
  expect(kSmall, "aten::cross_entropy_loss", 0, 0, 1);
  expect(kSmall, "aten::_log_softmax_backward_data", 0, 0, 1);
  expect(kSmall, "aten::native_layer_norm", 0, 2, 1);
  GptConfig recomputed = kSmall;
  recomputed.activation_checkpointing = Checkpointing::kFull;
  expect(recomputed, "aten::gelu", 0, 2, 0);
}

// A loss that costs as much as five blocks, where the estimate has the output layer at less than
// one: the measured split is the best of all splits, and better than the estimated one.
TEST(PartCosts, MeasuredFindsADearHead) {
  const PartCosts costs = measured_costs(kSmall, 2, at::kFloat,
                                         priced({{"aten::gelu", 1},
                                                 {"aten::gelu_backward", 2},
                                                 {"aten::cross_entropy_loss", 15},
                                                 {"aten::embedding", 0.5}}));
  EXPECT_EQ(costs.embedding, 1);
  EXPECT_EQ(costs.block, 3);
  EXPECT_EQ(costs.output, 15);
  GptConfig measured = kSmall, estimated = kSmall;
  measured.costs = costs;
  estimated.costs = estimated_costs(kSmall);
  EXPECT_LT(estimated.costs.output, estimated.costs.block);
  const schedule::Cut blocks = blocks_of_stages(measured, 3);
  EXPECT_EQ(blocks, (schedule::Cut{4, 5, 0}));
  EXPECT_EQ(dearest(blocks, costs), best_of_all(kSmall.layers, costs));
  EXPECT_GT(dearest(blocks_of_stages(estimated, 3), costs), dearest(blocks, costs));
}

// All kinds of parts dear, against all splits.
TEST(PartCosts, MeasuredSplitsAreTheBest) {
  for (const double embedding : {0.1, 3.0, 11.0}) {
    for (const double output : {0.1, 4.0, 26.0}) {
      const PartCosts costs = measured_costs(kSmall, 2, at::kFloat,
                                             priced({{"aten::gelu", 2},
                                                     {"aten::embedding", embedding},
                                                     {"aten::cross_entropy_loss", output}}));
      GptConfig config = kSmall;
      config.costs = costs;
      const schedule::Cut blocks = blocks_of_stages(config, 3);
      EXPECT_EQ(std::accumulate(blocks.begin(), blocks.end(), 0), kSmall.layers);
      EXPECT_DOUBLE_EQ(dearest(blocks, costs), best_of_all(kSmall.layers, costs))
          << embedding << " " << output;
    }
  }
}

// In half precision as in training, and with every option of a block.
TEST(PartCosts, MeasuresSeconds) {
  GptConfig config{.layers = 4, .dim = 32, .context = 8, .norm = NormKind::kRms, .rope = true};
  config.tie = true;
  config.activation_checkpointing = Checkpointing::kSelective;
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const PartCosts costs = measured_costs(config, 2, dtype);
    for (const double seconds : {costs.embedding, costs.block, costs.output}) EXPECT_GT(seconds, 0);
  }
}

}  // namespace
}  // namespace pipewright::examples
