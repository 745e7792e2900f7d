#include "pipewright/executor/recorder.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "pipewright/schedule/graph/channel_graph.h"

namespace pipewright::executor {

namespace {

size_t start_of(size_t step) { return 2 * step; }
size_t end_of(size_t step) { return 2 * step + 1; }

bool is_input_of(ir::ActionPart receive, ir::ActionPart compute) {
  if (receive.stage() != compute.stage() || receive.microbatch() != compute.microbatch())
    return false;
  return receive.kind() == ir::ActionKind::kRecvF ? compute.kind() == ir::ActionKind::kForward
                                                  : ir::gives_input_gradient(compute.kind());
}

}  // namespace

Recorder::Recorder(const ir::Row& row, std::unique_ptr<StepClock> clock)
    : row_(row), clock_(std::move(clock)) {
  for (size_t step = 0; step < row.size(); ++step) {
    if (ir::is_receive(row[step].kind())) receives_[row[step].parts()[0]] = step;
  }
}

void Recorder::begin_step() {
  state_ = State::kRunning;
  clock_->begin_step();
}

void Recorder::begin(const PlannedAction& planned) {
  current_ = planned.action;
  step_ = static_cast<size_t>(planned.step);
  clock_->mark({start_of(step_)});
}

void Recorder::received(ir::ActionPart receive) {
  if (state_ != State::kRunning) return;
  const auto posted = receives_.find(receive);
  if (posted == receives_.end()) return;
  const size_t arrival = end_of(posted->second);
  if (!current_.is_idle() && is_input_of(receive, current_.parts()[0]))
    clock_->mark({arrival, start_of(step_)});
  else
    clock_->mark({arrival});
}

void Recorder::end() {
  clock_->mark({end_of(step_)});
  current_ = {};
}

void Recorder::end_step() { state_ = State::kComplete; }

std::vector<ir::Interval> Recorder::intervals() const {
  const std::vector<std::optional<double>> seconds = clock_->seconds();
  std::vector<ir::Interval> intervals;
  for (size_t step = 0; step < row_.size(); ++step)
    intervals.push_back({seconds[start_of(step)].value_or(0), seconds[end_of(step)].value_or(0)});
  return intervals;
}

double Recorder::bubble() const {
  const std::vector<ir::Interval> intervals = this->intervals();
  double first = std::numeric_limits<double>::infinity(), last = 0, busy = 0;
  for (size_t step = 0; step < row_.size(); ++step) {
    const ir::ActionKind kind = row_[step].kind();
    if (row_[step].is_idle() || ir::is_transfer(kind) || ir::is_wait_send(kind)) continue;
    first = std::min(first, intervals[step].start);
    last = std::max(last, intervals[step].end);
    if (ir::is_compute(kind)) busy += intervals[step].duration();
  }
  return last > first ? 1 - busy / (last - first) : 0;
}

ir::Timeline merge_recordings(const ir::Program& program,
                              const std::vector<std::vector<ir::Interval>>& ranks) {
  ir::Timeline timeline(program.rows);
  double origin = std::numeric_limits<double>::infinity();
  for (size_t rank = 0; rank < program.rows.size(); ++rank) {
    for (size_t step = 0; step < program.rows[rank].size(); ++step) {
      if (!program.rows[rank][step].is_idle()) origin = std::min(origin, ranks[rank][step].start);
    }
  }
  for (size_t rank = 0; rank < program.rows.size(); ++rank) {
    for (size_t step = 0; step < program.rows[rank].size(); ++step) {
      if (program.rows[rank][step].is_idle()) continue;
      const ir::Interval& one = ranks[rank][step];
      timeline.at(rank, step) = {one.start - origin, one.end - origin};
    }
  }
  const auto graph =
      schedule::ChannelGraph::of_program(program, ir::ChannelModel::kEdge, ir::kUnboundedCapacity);
  for (uint32_t number = 0; number < graph.size(); ++number) {
    if (graph.node(number) != schedule::ChannelGraph::Node::kSend) continue;
    const uint32_t partner = graph.partner_of(number);
    if (partner == schedule::ChannelGraph::kNone) continue;
    ir::Interval& send = timeline[number];
    ir::Interval& receive = timeline[partner];
    receive.start = std::max(receive.start, send.start);
    receive.end = std::max(receive.end, receive.start);
    send.end = receive.end;
  }
  // The receiver may look later than its sender, which has waited for the end.
  for (uint32_t number = 0; number < graph.size(); ++number) {
    if (graph.node(number) != schedule::ChannelGraph::Node::kWait) continue;
    graph.for_each_awaited(number, [&](uint32_t awaited) {
      ir::Interval& operation = timeline[awaited];
      operation.end = std::clamp(timeline[number].end, operation.start, operation.end);
    });
  }
  return timeline;
}

}  // namespace pipewright::executor
