#include "examples/learning_rate.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <vector>

namespace pipewright::examples {

double learning_rate_factor(const LearningRatePlan& plan, int64_t step, int64_t steps) {
  if (step < plan.warmup) return static_cast<double>(step + 1) / static_cast<double>(plan.warmup);
  if (!plan.cosine) return 1;
  constexpr double kLeast = 0.1;
  const auto last = static_cast<double>(std::max<int64_t>(steps - 1 - plan.warmup, 1));
  const double progress = static_cast<double>(step - plan.warmup) / last;
  return kLeast + (1 - kLeast) * (1 + std::cos(std::numbers::pi * progress)) / 2;
}

void scaled_step(torch::optim::Optimizer& optimizer, double factor) {
  std::vector<double> full;
  for (auto& group : optimizer.param_groups()) {
    full.push_back(group.options().get_lr());
    group.options().set_lr(full.back() * factor);
  }
  optimizer.step();
  for (size_t i = 0; i < full.size(); ++i) optimizer.param_groups()[i].options().set_lr(full[i]);
}

}  // namespace pipewright::examples
