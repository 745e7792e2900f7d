// The cost of a compute action is the time from when it could start until it ends. A simulation in
// which every action has its own cost, so measured, is the recorded run: what the host did between
// two actions, such as posting transfers, is part of the action that it delayed. The costs found
// are the means of that, so the busy time of every stage is the recorded one.
#include "pipewright/schedule/simulate/recorded_costs.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <limits>
#include <map>
#include <numeric>
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

std::optional<double> mean(const std::vector<double>& values) {
  if (values.empty()) return std::nullopt;
  return std::reduce(values.begin(), values.end()) / static_cast<double>(values.size());
}

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
    return mean(durations.alone.empty() ? durations.in_compounds : durations.alone);
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

constexpr double kEver = std::numeric_limits<double>::lowest();

// The transfer of a tensor between ranks.
struct Transfer {
  int from, to;          // ranks
  ir::Interval send;     // until the receiver has looked for it
  double receive_start;  // no sooner than that of the SEND
};

// The transfers of a recording.
class Transfers {
 public:
  Transfers(const ir::Schedule& schedule, const ir::Timeline& timeline)
      : schedule_(schedule),
        of_inputs_(2 * static_cast<size_t>(schedule.placement.num_stages()) *
                   static_cast<size_t>(schedule.num_microbatches)) {
    for_each_transfer([&](size_t rank, size_t step, ActionPart part) {
      if (!ir::is_send(part.kind())) return;
      const int stage = receiving_stage(part);
      of_inputs_[index(stage, part.kind() == ActionKind::kSendB, part.microbatch())] = {
          static_cast<int>(rank), schedule.placement.rank_of(stage), timeline.at(rank, step),
          kEver};
    });
    for_each_transfer([&](size_t rank, size_t step, ActionPart part) {
      if (!ir::is_receive(part.kind())) return;
      auto& transfer =
          of_inputs_[index(part.stage(), part.kind() == ActionKind::kRecvB, part.microbatch())];
      if (transfer) transfer->receive_start = timeline.at(rank, step).start;
    });
  }

  // Calls visit(const Transfer*) for each input of a compute action that comes from another rank:
  // null if nothing tells of its transfer, as in a compute order.
  template <typename Visit>
  void for_each_input(const ir::Action& compute, const Visit& visit) const {
    const ir::Placement& placement = schedule_.placement;
    for (const ActionPart part : compute.parts()) {
      const bool is_gradient = ir::gives_input_gradient(part.kind());
      if (!is_gradient && part.kind() != ActionKind::kForward) continue;
      const int from = part.stage() + (is_gradient ? 1 : -1);
      if (from < 0 || from >= placement.num_stages() ||
          placement.rank_of(from) == placement.rank_of(part.stage()))
        continue;
      const auto& transfer = of_inputs_[index(part.stage(), is_gradient, part.microbatch())];
      visit(transfer ? &*transfer : nullptr);
    }
  }

 private:
  template <typename Visit>
  void for_each_transfer(const Visit& visit) const {
    for (size_t rank = 0; rank < schedule_.rows.size(); ++rank) {
      for (size_t step = 0; step < schedule_.rows[rank].size(); ++step) {
        const ir::Action& action = schedule_.rows[rank][step];
        if (ir::is_transfer(action.kind())) visit(rank, step, action.parts()[0]);
      }
    }
  }
  size_t index(int stage, bool is_gradient, int microbatch) const {
    return (2 * static_cast<size_t>(stage) + (is_gradient ? 1 : 0)) *
               static_cast<size_t>(schedule_.num_microbatches) +
           static_cast<size_t>(microbatch);
  }

  const ir::Schedule& schedule_;
  std::vector<std::optional<Transfer>> of_inputs_;  // by stage, kind and microbatch
};

// The latency of each link. A transfer that its receiver waited for, most of the time, tells it.
// All others only bound it from above: their receivers were busy.
void set_links(const ir::Schedule& schedule, const ir::Timeline& timeline,
               const Transfers& transfers, Costs* costs) {
  struct Link {
    double fastest = std::numeric_limits<double>::infinity();
    bool is_known = false;
  };
  std::map<std::pair<int, int>, Link> links;
  for (size_t rank = 0; rank < schedule.rows.size(); ++rank) {
    double previous = kEver;  // the end of the compute before
    for (size_t step = 0; step < schedule.rows[rank].size(); ++step) {
      const ir::Action& action = schedule.rows[rank][step];
      if (!ir::is_compute(action.kind())) continue;
      transfers.for_each_input(action, [&](const Transfer* transfer) {
        if (!transfer) return;
        Link& link = links[{transfer->from, transfer->to}];
        link.fastest = std::min(link.fastest, transfer->send.duration());
        const double waited = transfer->send.end - std::max(previous, transfer->receive_start);
        link.is_known = link.is_known || waited > transfer->send.duration() / 2;
      });
      previous = timeline.at(rank, step).end;
    }
  }
  std::vector<double> known;
  for (const auto& [ranks, link] : links) {
    if (link.is_known) known.push_back(link.fastest);
  }
  std::vector<double> latencies;
  for (const auto& [ranks, link] : links) {
    const double latency =
        link.is_known || known.empty() ? link.fastest : std::min(link.fastest, lower_median(known));
    costs->links[ranks] = {.latency = latency};
    latencies.push_back(latency);
  }
  costs->link.latency = lower_median(latencies);
}

// Adds the actions of a rank, computes with the time in which they could have run already.
void add_row(const ir::Schedule& schedule, const ir::Timeline& timeline, size_t rank,
             const Transfers& transfers, const Costs& costs, Measured* measured) {
  std::vector<double> unsharded(static_cast<size_t>(schedule.placement.num_stages()), kEver);
  double previous = kEver;  // the end of the compute before
  for (size_t step = 0; step < schedule.rows[rank].size(); ++step) {
    const ir::Action& action = schedule.rows[rank][step];
    const ir::Interval& interval = timeline.at(rank, step);
    if (!ir::is_compute(action.kind())) {
      measured->add(action, interval.duration());
      if (action.kind() == ActionKind::kUnshard)
        unsharded[static_cast<size_t>(action.parts()[0].stage())] = interval.end;
      continue;
    }
    double ready = previous;
    transfers.for_each_input(action, [&](const Transfer* transfer) {
      ready =
          std::max(ready, !transfer ? interval.start
                                    : transfer->send.start +
                                          *costs.links.at({transfer->from, transfer->to}).latency);
    });
    for (const ActionPart part : action.parts())
      ready = std::max(ready, unsharded[static_cast<size_t>(part.stage())]);
    // Nothing tells when the first one could start, if it needs nothing.
    if (ready == kEver) ready = interval.start;
    measured->add(action, interval.end - std::min(ready, interval.start));
    previous = interval.end;
  }
}

}  // namespace

int receiving_stage(ActionPart send) {
  return send.stage() + (send.kind() == ActionKind::kSendF ? 1 : -1);
}

Costs recorded_costs(const ir::Schedule& schedule, const ir::Recording& recording) {
  Costs costs{.unit = recording.unit};
  const Transfers transfers(schedule, recording.timeline);
  set_links(schedule, recording.timeline, transfers, &costs);
  const auto stages = static_cast<size_t>(schedule.placement.num_stages());
  Measured measured(schedule.placement.num_stages());
  for (size_t rank = 0; rank < schedule.rows.size(); ++rank)
    add_row(schedule, recording.timeline, rank, transfers, costs, &measured);
  const auto per_stage = [&](const auto& of_stage) {
    std::vector<double> values;
    for (size_t stage = 0; stage < stages; ++stage) values.push_back(of_stage(stage));
    return PerStage(std::move(values));
  };
  const auto of_kind = [&](ActionKind kind) {
    return per_stage([&](size_t stage) { return measured.of(kind, stage).value_or(0); });
  };
  costs.forward = of_kind(ActionKind::kForward);
  costs.backward_input =
      per_stage([&](size_t stage) { return backward_of(measured, stage).first; });
  costs.backward_weight =
      per_stage([&](size_t stage) { return backward_of(measured, stage).second; });
  // A recorded backward contains what its stage recomputed.
  if (!schedule.recompute.empty()) {
    costs.recompute = per_stage([&](size_t stage) {
      return std::ranges::count(schedule.recompute, static_cast<int>(stage)) == 0 ? 1 : 0;
    });
  }
  costs.unshard = of_kind(ActionKind::kUnshard);
  costs.reshard = of_kind(ActionKind::kReshard);
  costs.reduce_grad = of_kind(ActionKind::kReduceGrad);
  return costs;
}

}  // namespace pipewright::schedule
