// Most figures of the report come from one pass over each row. Exposed communication also needs
// TransferTimes: it is the part of the gap before a compute during which one of its inputs was
// being transferred from another rank. A compute has at most two such inputs; the union of the two
// transfers is clipped to the gap.
#include "pipewright/schedule/simulate/report.h"

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include "pipewright/ir/dependencies.h"
#include "pipewright/ir/tables.h"
#include "pipewright/schedule/simulate/memory_model.h"

namespace pipewright::schedule {
namespace {

using ir::Action;
using ir::ActionKind;
using ir::ActionPart;
using ir::Interval;

// When each transfer between ranks took place: in a program, the interval of its RECV; in an order,
// which has no transfers as actions, from the end of the compute for as long as the costs say.
class TransferTimes {
 public:
  TransferTimes(const ir::Schedule& schedule, const CostTable& table, const ir::Timeline& timeline)
      : intervals_(schedule.placement, schedule.num_microbatches) {
    const ir::StageDependencies dependencies(schedule.placement);
    for (size_t rank = 0; rank < schedule.rows.size(); ++rank) {
      for (size_t step = 0; step < schedule.rows[rank].size(); ++step) {
        const Action& action = schedule.rows[rank][step];
        for (const ActionPart part : action.parts()) {
          const auto& transfer = dependencies.of(part).transfer;
          if (!transfer) continue;
          const bool forward = transfer->receive.kind() == ActionKind::kRecvF;
          Interval& transfer_time = at(forward, transfer->receive.stage(), part.microbatch());
          if (ir::is_receive(part.kind())) {
            transfer_time = timeline.at(rank, step);
          } else if (ir::is_compute(part.kind()) && transfer_time == Interval()) {
            const double end = timeline.at(rank, step).end;
            const ActionKind send = forward ? ActionKind::kSendF : ActionKind::kSendB;
            transfer_time = {end, end + table.of_send({send, part.stage(), part.microbatch()})};
          }
        }
      }
    }
  }

  // The transfer of the output, or of the gradient, that a stage receives.
  Interval& at(bool forward, int stage, int microbatch) {
    return intervals_.at(stage, microbatch)[static_cast<size_t>(forward)];
  }

 private:
  ir::StageMicrobatchTable<std::array<Interval, 2>> intervals_;  // of gradients, of outputs
};

// How much of `gap` the union of two intervals covers.
double covered(const Interval& gap, Interval left, Interval right) {
  if (right.start < left.start) std::swap(left, right);
  const auto clip = [&](double time) { return std::clamp(time, gap.start, gap.end); };
  const double first = clip(left.end) - clip(left.start);
  const double begin = std::max(right.start, left.end);
  return first + std::max(0.0, clip(right.end) - clip(begin));
}

// The exposed communication of a rank: how long its computes were stalled on transfers.
double exposed_of(const ir::Schedule& schedule, const ir::Timeline& timeline, size_t rank,
                  const ir::StageDependencies& dependencies, TransferTimes* transfers) {
  double exposed = 0;
  double last_end = std::numeric_limits<double>::infinity();
  for (size_t step = 0; step < schedule.rows[rank].size(); ++step) {
    const Action& action = schedule.rows[rank][step];
    if (!ir::is_compute(action.kind())) continue;
    const Interval gap{last_end, timeline.at(rank, step).start};
    last_end = timeline.at(rank, step).end;
    if (ir::without_rounding(gap.end - gap.start, gap.end) <= 0) continue;
    Interval inputs[2];
    size_t size = 0;
    for (const ActionPart part : action.parts()) {
      for (const ir::StageDependencies::Need& need : dependencies.of(part)) {
        if (need.of_other_rank)
          inputs[size++] =
              transfers->at(need.result == ir::Result::kOutput, part.stage(), part.microbatch());
      }
    }
    exposed += covered(gap, inputs[0], inputs[1]);
  }
  return exposed;
}

}  // namespace

Report report_on(const ir::Schedule& schedule, const Costs& costs, const ir::Timeline& timeline) {
  Report report;
  const CostTable table(costs, schedule.placement);
  const ir::StageDependencies dependencies(schedule.placement);
  const bool has_backward = ir::has_backward(schedule);
  const MemoryModel memory(schedule, costs);
  TransferTimes transfers(schedule, table, timeline);
  double busiest = 0;
  for (size_t rank = 0; rank < schedule.rows.size(); ++rank) {
    const ir::Row& row = schedule.rows[rank];
    RankReport one;
    one.start = std::numeric_limits<double>::infinity();
    for (size_t step = 0; step < row.size(); ++step) {
      if (row[step].is_idle()) continue;
      const Interval& interval = timeline.at(rank, step);
      if (ir::is_transfer(row[step].kind()) || ir::is_wait_send(row[step].kind())) continue;
      // A data-parallel action that takes no time does not extend the span.
      if (interval.duration() > 0 || ir::is_compute(row[step].kind())) {
        one.start = std::min(one.start, interval.start);
        one.end = std::max(one.end, interval.end);
      }
      if (ir::is_compute(row[step].kind())) one.busy += interval.duration();
    }
    busiest = std::max(busiest, one.busy);
    if (one.start > one.end) one.start = one.end = 0;
    one.exposed_communication = exposed_of(schedule, timeline, rank, dependencies, &transfers);
    one.peak_activations = peak_activations(row, has_backward);
    if (costs.has_sizes()) {
      for (const MemorySample& sample : memory.along(timeline, rank)) {
        if (sample.bytes > one.peak_bytes.amount) one.memory = sample.parts;
        one.peak_bytes.add(sample.bytes, sample.step);
      }
    }
    report.cost = std::max(report.cost, one.span());
    report.ranks.push_back(one);
  }
  report.makespan = ir::span_of(schedule.rows, timeline).duration();
  if (report.cost > 0)
    report.bubble_rate = ir::without_rounding(report.cost - busiest, report.cost) / report.cost;
  return report;
}

}  // namespace pipewright::schedule
