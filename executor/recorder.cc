#include "pipewright/executor/recorder.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <utility>
#include <vector>

#include "pipewright/comms/device_event.h"
#include "pipewright/comms/failure/failure_domain.h"
#include "pipewright/executor/program/program.h"
#include "pipewright/schedule/graph/channel_graph.h"

namespace pipewright::executor {
namespace {

c10::Event timed_event(at::Device device) {
  return {device.type(), c10::EventFlag::BACKEND_DEFAULT};
}

}  // namespace

DeviceClock::DeviceClock(at::Device device, size_t num_points)
    : device_(device),
      num_points_(num_points),
      begin_(timed_event(device)),
      event_of_(num_points) {}

void DeviceClock::begin_step() {
  event_of_.assign(num_points_, std::nullopt);
  num_recorded_ = 0;
  record(&begin_);
}

void DeviceClock::mark(std::initializer_list<size_t> points) {
  if (num_recorded_ == events_.size()) events_.push_back(timed_event(device_));
  record(&events_[num_recorded_]);
  for (const size_t point : points) event_of_[point] = num_recorded_;
  ++num_recorded_;
}

size_t DeviceClock::mark_next() {
  event_of_.emplace_back();
  mark({event_of_.size() - 1});
  return event_of_.size() - 1;
}

std::vector<std::optional<double>> DeviceClock::seconds() {
  std::vector<std::optional<double>> seconds(event_of_.size());
  if (!begin_.was_marked_for_recording()) return seconds;
  // Those of side streams may come after all that the current stream waits for.
  for (size_t event = 0; event < num_recorded_; ++event) events_[event].synchronize();
  const auto since_begin = [&](const c10::Event& event) {
    return begin_.elapsedTime(event) * 1e-3;
  };
  // The first round waits for the work of the step, so it is never the fastest if there is any.
  constexpr int kRounds = 6;
  double fastest = std::numeric_limits<double>::infinity(), host_begin = 0;
  c10::Event now = timed_event(device_);
  for (int round = 0; round < kRounds; ++round) {
    const double before = comms::steady_seconds();
    record(&now);
    now.synchronize();
    const double after = comms::steady_seconds();
    if (after - before >= fastest) continue;
    fastest = after - before;
    host_begin = (before + after) / 2 - since_begin(now);
  }
  for (size_t point = 0; point < seconds.size(); ++point) {
    if (event_of_[point]) seconds[point] = host_begin + since_begin(events_[*event_of_[point]]);
  }
  return seconds;
}

void DeviceClock::record(c10::Event* event) const { event->record(comms::current_stream(device_)); }

namespace {

size_t start_of(size_t step) { return 4 * step; }
size_t end_of(size_t step) { return 4 * step + 1; }
size_t recomputed_of(size_t step) { return 4 * step + 2; }
size_t resumed_of(size_t step) { return 4 * step + 3; }

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
  work_.clear();
  clock_->begin_step();
}

void Recorder::begin(const PlannedAction& planned) {
  current_ = planned.action;
  step_ = static_cast<size_t>(planned.step);
  has_recomputed_ = false;
  clock_->mark({start_of(step_)});
}

void Recorder::received(ir::ActionPart receive) {
  if (state_ != State::kRunning) return;
  const auto posted = receives_.find(receive);
  if (posted == receives_.end()) return;
  const size_t arrival = end_of(posted->second);
  if (!current_.is_idle() && is_input_of(receive, current_.parts()[0]))
    clock_->mark({arrival, has_recomputed_ ? resumed_of(step_) : start_of(step_)});
  else
    clock_->mark({arrival});
  const MarkedWork* const work = under_way();
  if (work != nullptr && !work->has_recomputed && is_input_of(receive, work->part))
    clock_->mark({work->begin});
}

void Recorder::recomputed() {
  if (MarkedWork* const work = under_way()) work->has_recomputed = true;
  if (state_ != State::kRunning || current_.is_compound()) return;
  has_recomputed_ = true;
  clock_->mark({recomputed_of(step_)});
}

void Recorder::begin_work(ir::WorkTrack track, ir::ActionPart part) {
  work_.push_back({track, part, clock_->mark_next(), std::nullopt});
}

void Recorder::end_work() { work_.back().end = clock_->mark_next(); }

Recorder::MarkedWork* Recorder::under_way() {
  return work_.empty() || work_.back().end ? nullptr : &work_.back();
}

void Recorder::end() {
  clock_->mark({end_of(step_)});
  current_ = {};
}

void Recorder::end_step() { state_ = State::kComplete; }

RankRecording Recorder::recording() const {
  const std::vector<std::optional<double>> seconds = clock_->seconds();
  RankRecording result;
  for (size_t step = 0; step < row_.size(); ++step) {
    const std::optional<double> recomputed = seconds[recomputed_of(step)];
    const double waited =
        recomputed ? seconds[resumed_of(step)].value_or(*recomputed) - *recomputed : 0;
    result.intervals.push_back(
        {seconds[start_of(step)].value_or(0) + waited, seconds[end_of(step)].value_or(0)});
  }
  for (const MarkedWork& work : work_) {
    if (work.end)
      result.work.push_back({.track = work.track,
                             .part = work.part,
                             .time = {*seconds[work.begin], *seconds[*work.end]}});
  }
  return result;
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

ir::Timeline merge_recordings(const ir::Program& program, const std::vector<RankRecording>& ranks) {
  ir::Timeline timeline(program.rows);
  double origin = std::numeric_limits<double>::infinity();
  for (size_t rank = 0; rank < program.rows.size(); ++rank) {
    for (size_t step = 0; step < program.rows[rank].size(); ++step) {
      if (!program.rows[rank][step].is_idle())
        origin = std::min(origin, ranks[rank].intervals[step].start);
    }
  }
  const auto since_origin = [&](const ir::Interval& one) {
    return ir::Interval{one.start - origin, one.end - origin};
  };
  for (size_t rank = 0; rank < program.rows.size(); ++rank) {
    for (size_t step = 0; step < program.rows[rank].size(); ++step) {
      if (program.rows[rank][step].is_idle()) continue;
      timeline.at(rank, step) = since_origin(ranks[rank].intervals[step]);
    }
    for (const ir::Work& work : ranks[rank].work)
      timeline.add({static_cast<uint32_t>(rank), work.track, work.part, since_origin(work.time)});
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

namespace {

// The recording of a rank as its peer reads it: the intervals, then the work.
static_assert(std::is_trivially_copyable_v<ir::Interval> && std::is_trivially_copyable_v<ir::Work>);

std::vector<uint8_t> bytes_of(const RankRecording& one) {
  std::vector<uint8_t> bytes;
  const auto append = [&](const auto& values) {
    const auto* const first = reinterpret_cast<const uint8_t*>(values.data());
    bytes.insert(bytes.end(), first, first + values.size() * sizeof(values[0]));
  };
  append(one.intervals);
  append(one.work);
  return bytes;
}

// False if the bytes are not those of a row of so many actions.
bool read(const std::string& bytes, size_t num_actions, RankRecording* one) {
  const size_t intervals = num_actions * sizeof(ir::Interval);
  if (bytes.size() < intervals || (bytes.size() - intervals) % sizeof(ir::Work) != 0) return false;
  one->intervals.resize(num_actions);
  one->work.resize((bytes.size() - intervals) / sizeof(ir::Work));
  const auto split = bytes.begin() + static_cast<std::ptrdiff_t>(intervals);
  std::copy(bytes.begin(), split, reinterpret_cast<char*>(one->intervals.data()));
  std::copy(split, bytes.end(), reinterpret_cast<char*>(one->work.data()));
  return true;
}

}  // namespace

ir::Timeline gather_recording(comms::World& world, const std::string& key,
                              const ir::Program& program, int rank, const Recorder& recorder,
                              const comms::NamedClock& clock, const comms::ClockOffset& start,
                              std::chrono::milliseconds timeout) {
  const comms::ClockOffset end = comms::clock_offset(world, key + "/clock", rank,
                                                     program.placement.num_ranks(), clock, timeout);
  RankRecording own = recorder.recording();
  const auto correct = [&](ir::Interval& one) {
    one.start = comms::to_other_clock(one.start, start, end);
    one.end = comms::to_other_clock(one.end, start, end);
  };
  for (ir::Interval& one : own.intervals) correct(one);
  for (ir::Work& one : own.work) correct(one.time);
  const auto key_of = [&](size_t other) { return key + "/rank/" + std::to_string(other); };
  const comms::StorePtr& store = world.store();
  if (rank != 0) {
    store->set(key_of(static_cast<size_t>(rank)), bytes_of(own));
    return {};
  }
  std::vector<RankRecording> all(program.rows.size());
  all[0] = std::move(own);
  for (size_t other = 1; other < all.size(); ++other) {
    const std::string bytes = world.failures().wait_for(
        key_of(other), timeout,
        "program rank " + std::to_string(other) + " did not bring its recording within " +
            std::to_string(timeout.count()) + " ms");
    store->deleteKey(key_of(other));
    const size_t num_actions = program.rows[other].size();
    if (!read(bytes, num_actions, &all[other]))
      throw std::runtime_error("the recording of program rank " + std::to_string(other) +
                               ": expected " + std::to_string(num_actions) +
                               " actions and the work beside them, got " +
                               std::to_string(bytes.size()) + " bytes");
  }
  return merge_recordings(program, all);
}

}  // namespace pipewright::executor
