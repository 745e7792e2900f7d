#include "pipewright/schedule/simulate/jitter.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>
#include <random>
#include <vector>

#include "pipewright/schedule/problem/cancel.h"
#include "pipewright/schedule/simulate/simulate.h"

namespace pipewright::schedule {
namespace {

// Standard normal random numbers by the Box-Muller transform, because the results of
// std::normal_distribution differ between standard libraries.
class Normal {
 public:
  explicit Normal(uint64_t seed) : random_(seed) {}

  double next() {
    const double radius = std::sqrt(-2 * std::log(uniform()));
    return radius * std::cos(2 * std::numbers::pi * uniform());
  }

 private:
  // Uniform in (0, 1].
  double uniform() { return static_cast<double>((random_() >> 11) + 1) * 0x1p-53; }

  std::mt19937_64 random_;
};

}  // namespace

Spread spread_of_makespan(const ChannelGraph& graph, const ir::Schedule& schedule,
                          const Costs& costs, double sigma, int runs, uint64_t seed,
                          const std::atomic<bool>* cancel) {
  Normal normal(seed);
  std::vector<double> makespans;
  std::vector<double> stretch(ir::Timeline(schedule.rows).size(), 1);
  for (int run = 0; run < runs; ++run) {
    for (double& factor : stretch) factor = std::exp(sigma * normal.next() - sigma * sigma / 2);
    const ir::Timeline timeline = simulate(graph, schedule, costs, stretch);
    makespans.push_back(ir::span_of(schedule.rows, timeline).duration());
    if (is_cancelled(cancel)) break;
  }
  runs = static_cast<int>(makespans.size());
  std::ranges::sort(makespans);
  const auto at = [&](double part) {
    const double last = static_cast<double>(makespans.size() - 1);
    return makespans[static_cast<size_t>(std::ceil(part * last))];
  };
  Spread spread;
  spread.runs = runs;
  spread.least = makespans.front();
  spread.median = at(0.5);
  spread.percentile_95 = at(0.95);
  spread.most = makespans.back();
  spread.mean = std::accumulate(makespans.begin(), makespans.end(), 0.0) / runs;
  double squares = 0;
  for (const double one : makespans) squares += (one - spread.mean) * (one - spread.mean);
  spread.deviation = runs > 1 ? std::sqrt(squares / (runs - 1)) : 0;
  return spread;
}

}  // namespace pipewright::schedule
