// A rank goes on until the input of a compute has not been made, and the compute that makes it
// wakes the rank. Linear in the number of actions.
#include "pipewright/schedule/simulate/simulate_order.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "pipewright/ir/stage_dependencies.h"
#include "pipewright/schedule/graph/stage_kinds.h"
#include "pipewright/schedule/graph/turns.h"
#include "pipewright/schedule/simulate/in_flight.h"

namespace pipewright::schedule {
namespace {

using ir::ActionKind;
using ir::ActionPart;

class OrderWalk {
 public:
  OrderWalk(const ir::ComputeOrder& order, const CostTable& table, std::span<const double> stretch)
      : table_(table),
        stretch_(stretch),
        arrivals_(2 * static_cast<size_t>(order.placement.num_stages())),
        turns_(order.rows.size()),
        timeline_(ir::Timeline::unwritten(order.rows)) {
    link_stages(order.placement);
    for (const RestOfRow& row : whole_rows(order.rows)) rest_.push_back({row});
  }

  std::optional<ir::Timeline> run() {
    if (!turns_.run([&](size_t rank) { return go_on(&rest_[rank]); })) return std::nullopt;
    return std::move(timeline_);
  }

 private:
  // The rest of a rank's row, and the end of the compute before it.
  struct Rest : RestOfRow {
    double compute = 0;
  };
  // Of a kind of compute at a stage: the flow of its input from another stage, and that of its
  // result to another stage. kNone if there is none.
  struct Links {
    uint32_t input = kNone, result = kNone;
    uint32_t user = kNone;  // the rank that uses the result
    double delay = 0;       // the transfer delay of the result
  };

  void link_stages(const ir::Placement& placement) {
    const ir::StageDependencies dependencies(placement);
    links_.resize(static_cast<size_t>(placement.num_stages()) * kKindsPerStage);
    for (int stage = 0; stage < placement.num_stages(); ++stage) {
      for (const ActionKind kind :
           {ActionKind::kForward, ActionKind::kBackward, ActionKind::kBackwardInput}) {
        for (const ir::StageDependencies::Need& need : dependencies.of({kind, stage})) {
          if (need.stage == stage) continue;
          const bool is_output = need.result == ir::Result::kOutput;
          const uint32_t flow = 2 * static_cast<uint32_t>(stage) + (is_output ? 0 : 1);
          links_[stage_kind({kind, stage})].input = flow;
          Links& maker = links_[stage_kind({kind, need.stage})];
          maker.result = flow;
          maker.user = static_cast<uint32_t>(placement.rank_of(stage));
          maker.delay =
              is_output ? table_.output_transfer(need.stage) : table_.gradient_transfer(need.stage);
        }
      }
    }
  }

  Turns::Stop go_on(Rest* rest) {
    Rest row = *rest;
    const ir::Action* const end = row.end_of_turn();
    for (; row.next != end; ++row.next, ++row.number) {
      const ir::Action& action = *row.next;
      if (action.is_idle()) {
        timeline_[row.number] = {};
        continue;
      }
      InFlight::Tensor* const input = input_of(action.parts()[0]);
      if (input == nullptr) break;
      double start = std::max(row.compute, input->arrival);
      if (action.is_compound()) {
        InFlight::Tensor* const other = input_of(action.parts()[1]);
        if (other == nullptr) break;
        start = std::max(start, other->arrival);
        InFlight::remove(other);
      }
      InFlight::remove(input);
      double duration = table_.duration(action);
      if (!stretch_.empty()) duration *= stretch_[row.number];
      row.compute = start + duration;
      timeline_[row.number] = {start, row.compute};
      deliver(action.parts()[0], row.compute);
      if (action.is_compound()) deliver(action.parts()[1], row.compute);
    }
    *rest = row;
    const Turns::Stop stop = Turns::stop_of(row, end);
    if (stop != Turns::kAtEnd) {
      fetch_ahead(row.next);
      fetch_ahead(&timeline_[row.number]);
    }
    return stop;
  }

  // The input of a compute from another stage, or one that is always there if it needs none.
  // nullptr if it has not been made.
  InFlight::Tensor* input_of(ActionPart part) {
    const uint32_t input = links_[stage_kind(part)].input;
    return input == kNone ? &no_input_ : arrivals_.find(input, part.microbatch());
  }
  // Sends the result of a compute that ends then on its way.
  void deliver(ActionPart part, double end) {
    const Links& links = links_[stage_kind(part)];
    if (links.result == kNone) return;
    arrivals_.add(links.result, part.microbatch(), end + links.delay);
    turns_.wake(links.user);
  }

  static constexpr uint32_t kNone = UINT32_MAX;

  const CostTable& table_;
  const std::span<const double> stretch_;
  std::vector<Links> links_;  // by stage and kind
  InFlight arrivals_;         // of inputs; two flows per stage that makes them
  InFlight::Tensor no_input_;
  Turns turns_;
  ir::Timeline timeline_;
  std::vector<Rest> rest_;  // by rank
};

}  // namespace

std::optional<ir::Timeline> simulate_order(const ir::ComputeOrder& order, const CostTable& table,
                                           std::span<const double> stretch) {
  size_t size = 0;
  for (const ir::Row& row : order.rows) size += row.size();
  if (size > UINT32_MAX) return std::nullopt;
  return OrderWalk(order, table, stretch).run();
}

}  // namespace pipewright::schedule
