#include "pipewright/schedule/simulate/recorded_costs.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "pipewright/schedule/simulate/median.h"

namespace pipewright::schedule {
namespace {

using ir::ActionKind;
using ir::ActionPart;

// Whose duration counts how much in a compound.
double weight_of(ActionPart part) { return part.kind() == ActionKind::kBackward ? 2 : 1; }

// The durations of one kind on one stage.
struct Durations {
  std::vector<double> alone, in_compounds;
};

class Measured {
 public:
  explicit Measured(int stages) : by_stage_(static_cast<size_t>(stages)) {}

  void add(const ir::Action& action, double duration) {
    double weight = 0;
    for (const ActionPart part : action.parts()) weight += weight_of(part);
    for (const ActionPart part : action.parts()) {
      Durations& durations =
          by_stage_[static_cast<size_t>(part.stage())][static_cast<size_t>(part.kind())];
      (action.is_compound() ? durations.in_compounds : durations.alone)
          .push_back(duration * weight_of(part) / weight);
    }
  }

  std::optional<double> of(ActionKind kind, size_t stage) const {
    const Durations& durations = by_stage_[stage][static_cast<size_t>(kind)];
    if (!durations.alone.empty()) return lower_median(durations.alone);
    if (!durations.in_compounds.empty()) return lower_median(durations.in_compounds);
    return std::nullopt;
  }

 private:
  std::vector<std::array<Durations, std::size(ir::kActionKinds) + 1>> by_stage_;
};

// I and W of a stage.
std::pair<double, double> backward_of(const Measured& measured, size_t stage) {
  const auto input = measured.of(ActionKind::kBackwardInput, stage);
  const auto weight = measured.of(ActionKind::kBackwardWeight, stage);
  const auto whole = measured.of(ActionKind::kBackward, stage);
  const auto rest = [&](double part) { return whole ? std::max(0.0, *whole - part) : 0; };
  if (input) return {*input, weight ? *weight : rest(*input)};
  if (weight) return {rest(*weight), *weight};
  return {whole.value_or(0) / 2, whole.value_or(0) / 2};
}

void set_links(const ir::Schedule& schedule, const ir::Timeline& timeline, Costs* costs) {
  std::map<std::pair<int, int>, double> fastest;
  for (size_t rank = 0; rank < schedule.rows.size(); ++rank) {
    for (size_t step = 0; step < schedule.rows[rank].size(); ++step) {
      const ir::Action& action = schedule.rows[rank][step];
      if (!ir::is_send(action.kind())) continue;
      const int to = schedule.placement.rank_of(receiving_stage(action.parts()[0]));
      const double duration = timeline.at(rank, step).duration();
      const auto [link, is_new] = fastest.try_emplace({static_cast<int>(rank), to}, duration);
      link->second = std::min(link->second, duration);
    }
  }
  std::vector<double> latencies;
  for (const auto& [ranks, latency] : fastest) {
    costs->links[ranks] = {.latency = latency};
    latencies.push_back(latency);
  }
  costs->link.latency = lower_median(latencies);
}

}  // namespace

int receiving_stage(ActionPart send) {
  return send.stage() + (send.kind() == ActionKind::kSendF ? 1 : -1);
}

Costs recorded_costs(const ir::Schedule& schedule, const ir::Recording& recording) {
  const auto stages = static_cast<size_t>(schedule.placement.num_stages());
  Measured measured(schedule.placement.num_stages());
  for (size_t rank = 0; rank < schedule.rows.size(); ++rank) {
    for (size_t step = 0; step < schedule.rows[rank].size(); ++step)
      measured.add(schedule.rows[rank][step], recording.timeline.at(rank, step).duration());
  }
  const auto per_stage = [&](const auto& of_stage) {
    std::vector<double> values;
    for (size_t stage = 0; stage < stages; ++stage) values.push_back(of_stage(stage));
    return PerStage(std::move(values));
  };
  const auto of_kind = [&](ActionKind kind) {
    return per_stage([&](size_t stage) { return measured.of(kind, stage).value_or(0); });
  };
  Costs costs{
      .unit = recording.unit,
      .forward = of_kind(ActionKind::kForward),
      .backward_input = per_stage([&](size_t stage) { return backward_of(measured, stage).first; }),
      .backward_weight =
          per_stage([&](size_t stage) { return backward_of(measured, stage).second; }),
      .unshard = of_kind(ActionKind::kUnshard),
      .reshard = of_kind(ActionKind::kReshard),
      .reduce_grad = of_kind(ActionKind::kReduceGrad)};
  set_links(schedule, recording.timeline, &costs);
  return costs;
}

}  // namespace pipewright::schedule
