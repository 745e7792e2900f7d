// SENDs and RECVs are matched by the input that they are for. Then the computes of each rank are
// visited in order: one that looks for a tensor has waited for it since the compute before it, and
// since its RECV took part.
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

namespace pipewright::schedule {
namespace {

constexpr double kEver = std::numeric_limits<double>::lowest();

bool is_of_gradient(ir::ActionKind kind) {
  return kind == ir::ActionKind::kRecvB || ir::gives_input_gradient(kind);
}

}  // namespace

int receiving_stage(ir::ActionPart send) {
  return send.stage() + (send.kind() == ir::ActionKind::kSendF ? 1 : -1);
}

RecordedTransfers::RecordedTransfers(const ir::Schedule& schedule, const ir::Timeline& timeline)
    : schedule_(schedule),
      of_input_(2 * static_cast<size_t>(schedule.placement.num_stages()) *
                static_cast<size_t>(schedule.num_microbatches)) {
  using ir::ActionKind;
  std::vector<std::optional<size_t>> send_of(of_input_.size());  // cells
  std::vector<double> received_from(of_input_.size(), kEver);
  for (size_t cell = 0; cell < timeline.size(); ++cell) {
    const auto [rank, step] = timeline.cell_of(cell);
    const ir::Action& action = schedule.rows[rank][step];
    if (!ir::is_transfer(action.kind())) continue;
    const ir::ActionPart part = action.parts()[0];
    if (ir::is_receive(part.kind())) {
      received_from[index(part)] = timeline[cell].start;
    } else {
      const ActionKind receive =
          part.kind() == ActionKind::kSendF ? ActionKind::kRecvF : ActionKind::kRecvB;
      send_of[index({receive, receiving_stage(part), part.microbatch()})] = cell;
    }
  }
  std::map<std::pair<int, int>, double> arrived;  // by link: the last arrival that is known
  for (size_t rank = 0; rank < schedule.rows.size(); ++rank) {
    double previous = kEver;  // the end of the compute before
    for (size_t step = 0; step < schedule.rows[rank].size(); ++step) {
      const ir::Action& action = schedule.rows[rank][step];
      if (!ir::is_compute(action.kind())) continue;
      for (const ir::ActionPart part : action.parts()) {
        if (!comes_from_another_rank(part) || !send_of[index(part)]) continue;
        const size_t cell = *send_of[index(part)];
        const ir::Interval &send = timeline[cell], &compute = timeline.at(rank, step);
        // One that recomputes looks after that, and its interval begins so much before it went on.
        const double recomputed = !action.is_compound() && is_of_gradient(part.kind()) &&
                                          ir::recomputes(schedule, part.stage())
                                      ? std::max(0.0, send.end - compute.start)
                                      : 0;
        RecordedTransfer transfer{
            .from = static_cast<int>(timeline.cell_of(cell).rank),
            .to = static_cast<int>(rank),
            .send = cell,
            .start = send.start,
            .end = send.end,
            .waited_from =
                std::max({previous + recomputed, received_from[index(part)], send.start})};
        double& last = arrived.try_emplace({transfer.from, transfer.to}, kEver).first->second;
        if (last <= transfer.end) transfer.start = std::max(transfer.start, last);
        if (transfer.is_known()) last = transfer.end;
        of_input_[index(part)] = all_.size();
        all_.push_back(transfer);
      }
      previous = timeline.at(rank, step).end;
    }
  }
}

bool RecordedTransfers::comes_from_another_rank(ir::ActionPart compute) const {
  const bool is_gradient = is_of_gradient(compute.kind());
  if (!is_gradient && compute.kind() != ir::ActionKind::kForward) return false;
  const int from = compute.stage() + (is_gradient ? 1 : -1);
  const ir::Placement& placement = schedule_.placement;
  return from >= 0 && from < placement.num_stages() &&
         placement.rank_of(from, compute.microbatch()) !=
             placement.rank_of(compute.stage(), compute.microbatch());
}

size_t RecordedTransfers::index(ir::ActionPart part) const {
  return (2 * static_cast<size_t>(part.stage()) + (is_of_gradient(part.kind()) ? 1 : 0)) *
             static_cast<size_t>(schedule_.num_microbatches) +
         static_cast<size_t>(part.microbatch());
}

// The cost of a compute action is the time from when it could start until it ends. A simulation in
// which every action has its own cost, so measured, is the recorded run: what the host did between
// two actions, such as posting transfers, is part of the action that it delayed. The costs found
// are the means of that, so the busy time of every stage is the recorded one.

namespace {

using ir::ActionKind;
using ir::ActionPart;

// Whose duration counts how much in a compound.
double weight_of(ActionPart part) { return part.kind() == ActionKind::kBackward ? 2 : 1; }

std::optional<double> mean(const std::vector<double>& values) {
  if (values.empty()) return std::nullopt;
  return std::reduce(values.begin(), values.end()) / static_cast<double>(values.size());
}

// Of one kind of action on one stage.
struct StageDurations {
  std::vector<double> alone, in_compounds;
};

class Measured {
 public:
  explicit Measured(int stages) : by_stage_(static_cast<size_t>(stages)) {}

  void add(const ir::Action& action, double duration) {
    double weight = 0;
    for (const ActionPart part : action.parts()) weight += weight_of(part);
    for (const ActionPart part : action.parts()) {
      StageDurations& durations =
          by_stage_[static_cast<size_t>(part.stage())][static_cast<size_t>(part.kind())];
      (action.is_compound() ? durations.in_compounds : durations.alone)
          .push_back(duration * weight_of(part) / weight);
    }
    if (action.is_compound()) compounds_.push_back({action, duration});
  }

  // The part of their shorter actions that compounds hid, if stages have `costs`; 0 if they hid
  // hardly anything. Only actions count that also ran alone: the others have no other duration than
  // their share of the compound.
  double overlap(const Costs& costs) const {
    constexpr double kNoise = 0.05;
    double hidden = 0, shorter = 0;
    for (const auto& [action, duration] : compounds_) {
      if (!std::ranges::all_of(action.parts(), [&](ActionPart part) { return ran_alone(part); }))
        continue;
      double sum = 0, least = std::numeric_limits<double>::infinity();
      for (const ActionPart part : action.parts()) {
        const double alone = cost_of(part, costs);
        sum += alone;
        least = std::min(least, alone);
      }
      hidden += sum - duration;
      shorter += least;
    }
    return hidden > kNoise * shorter ? std::min(1.0, hidden / shorter) : 0;
  }

  std::optional<double> of(ActionKind kind, size_t stage) const {
    const StageDurations& durations = by_stage_[stage][static_cast<size_t>(kind)];
    return mean(durations.alone.empty() ? durations.in_compounds : durations.alone);
  }

 private:
  struct Compound {
    ir::Action action;
    double duration;
  };

  static double cost_of(ActionPart part, const Costs& costs) {
    const int stage = part.stage();
    const double input = costs.backward_input.at(stage), weight = costs.backward_weight.at(stage);
    return part.kind() == ActionKind::kForward         ? costs.forward.at(stage)
           : part.kind() == ActionKind::kBackwardInput ? input
                                                       : input + weight;
  }
  bool ran_alone(ActionPart part) const {
    const auto alone = [&](ActionKind kind) {
      return !by_stage_[static_cast<size_t>(part.stage())][static_cast<size_t>(kind)].alone.empty();
    };
    const bool in_passes = part.kind() == ActionKind::kBackward &&
                           alone(ActionKind::kBackwardInput) && alone(ActionKind::kBackwardWeight);
    return alone(part.kind()) || in_passes;
  }

  std::vector<std::array<StageDurations, std::size(ir::kActionKinds) + 1>> by_stage_;
  std::vector<Compound> compounds_;
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

// The latency of each link. Transfers of which nobody knows how long they took only bound it from
// above.
void set_links(const RecordedTransfers& transfers, Costs* costs) {
  struct Link {
    double fastest = std::numeric_limits<double>::infinity();
    bool is_known = false;
  };
  std::map<std::pair<int, int>, Link> links;
  for (const RecordedTransfer& transfer : transfers.all()) {
    Link& link = links[{transfer.from, transfer.to}];
    link.fastest = std::min(link.fastest, transfer.duration());
    link.is_known = link.is_known || transfer.is_known();
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
             const RecordedTransfers& transfers, const Costs& costs, Measured* measured) {
  std::vector<double> unsharded(static_cast<size_t>(schedule.placement.num_stages()), kEver);
  double previous = kEver;  // the end of the compute or WAIT before
  for (size_t step = 0; step < schedule.rows[rank].size(); ++step) {
    const ir::Action& action = schedule.rows[rank][step];
    const ir::Interval& interval = timeline.at(rank, step);
    if (ir::is_wait(action.kind())) {
      previous = interval.end;
      continue;
    }
    if (!ir::is_compute(action.kind())) {
      measured->add(action, interval.duration());
      if (action.kind() == ActionKind::kUnshard)
        unsharded[static_cast<size_t>(action.parts()[0].stage())] = interval.end;
      continue;
    }
    double ready = previous;
    transfers.for_each_input(action, [&](const RecordedTransfer* transfer) {
      ready = std::max(
          ready, !transfer
                     ? interval.start
                     : transfer->start + *costs.links.at({transfer->from, transfer->to}).latency);
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

Costs recorded_costs(const ir::Schedule& schedule, const ir::Recording& recording) {
  Costs costs{.unit = recording.unit};
  const RecordedTransfers transfers(schedule, recording.timeline);
  set_links(transfers, &costs);
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
  // What was recorded of a slice is a part of its microbatch.
  for (PerStage Costs::*of_microbatch :
       {&Costs::forward, &Costs::backward_input, &Costs::backward_weight})
    (costs.*of_microbatch).scale(schedule.slices);
  // A recorded backward contains what its stage recomputed: its forward, if there is time for it.
  if (!schedule.recompute.empty()) {
    const auto again = [&](int stage) {
      return ir::recomputes(schedule, stage)
                 ? std::min(costs.forward.at(stage), costs.backward_input.at(stage))
                 : 0;
    };
    costs.recompute = per_stage([&](size_t of_stage) {
      const auto stage = static_cast<int>(of_stage);
      const double forward = costs.forward.at(stage);
      return ir::recomputes(schedule, stage) && forward > 0 ? again(stage) / forward : 1;
    });
    costs.backward_input = per_stage([&](size_t of_stage) {
      const auto stage = static_cast<int>(of_stage);
      return costs.backward_input.at(stage) - again(stage);
    });
  }
  costs.overlap = measured.overlap(costs);
  costs.unshard = of_kind(ActionKind::kUnshard);
  costs.reshard = of_kind(ActionKind::kReshard);
  costs.reduce_grad = of_kind(ActionKind::kReduceGrad);
  return costs;
}

}  // namespace pipewright::schedule
