#include "examples/part_costs.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <memory>
#include <sstream>
#include <string>

#include "pipewright/checkpoint/save.h"
#include "pipewright/comms/store_rounds.h"

namespace pipewright::examples {

PartCosts estimated_costs(const GptConfig& config) {
  const auto dim = static_cast<double>(config.dim);
  return {.embedding = dim,
          .block = 24 * dim * dim + 4 * static_cast<double>(config.context) * dim,
          .output = 2 * dim * kVocabulary};
}

double seconds_of(const std::function<void()>& work) {
  constexpr int kWarmUp = 2, kRuns = 5;
  double least = std::numeric_limits<double>::infinity();
  for (int run = 0; run < kWarmUp + kRuns; ++run) {
    const auto start = std::chrono::steady_clock::now();
    work();
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    if (run >= kWarmUp) least = std::min(least, seconds.count());
  }
  return least;
}

PartCosts measured_costs(const GptConfig& config, int64_t windows, at::ScalarType dtype,
                         const Stopwatch& stopwatch) {
  constexpr int kStages = 3;
  GptConfig parts = config;  // in a stage each
  parts.layers = 1;
  parts.costs = {.embedding = 2, .block = 1, .output = 2};
  const at::Tensor tokens =
      at::arange(windows * config.context).remainder(kVocabulary).view({windows, config.context});
  const auto cost_of = [&](int index) {
    const std::shared_ptr<GptStage> stage = make_gpt_stage(parts, index, kStages);
    stage->to(dtype);
    const bool is_first = index == 0, is_last = index == kStages - 1;
    const at::Tensor activations =
        at::ones({windows, config.context, config.dim}, at::TensorOptions(dtype));
    return stopwatch([&] {
      stage->zero_grad();
      const at::Tensor input = is_first ? tokens : activations.detach().requires_grad_();
      const at::Tensor output = stage->forward(input);
      if (is_last)
        gpt_loss(output, tokens).backward();
      else
        output.backward(activations);
    });
  };
  return {.embedding = cost_of(0), .block = cost_of(1), .output = cost_of(2)};
}

GptConfig balanced_model(const Options& options, comms::World& world) {
  GptConfig model = options.model;
  if (options.balance == Balance::kEstimated) model.costs = estimated_costs(model);
  if (options.balance != Balance::kMeasured) return model;
  comms::StoreExchange exchange(world, "balance");
  const auto all = checkpoint::agree(std::ref(exchange), [&]() -> std::string {
    if (world.rank() != 0) return "";
    const int64_t parts = int64_t{options.microbatches} * options.copies();
    const PartCosts costs =
        measured_costs(model, (options.batch + parts - 1) / parts, options.param_dtype);
    std::ostringstream text;
    text.precision(17);
    text << costs.embedding << ' ' << costs.block << ' ' << costs.output;
    return text.str();
  });
  std::istringstream measured(all[0]);
  measured >> model.costs.embedding >> model.costs.block >> model.costs.output;
  return model;
}

}  // namespace pipewright::examples
