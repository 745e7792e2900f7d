// A trace is a sequence of packets, each of which is field 1 of the message perfetto.protos.Trace.
// The first packets describe the tracks: a process per rank, and below it its tracks and counters.
// Then come the events of one track after the other; Perfetto sorts them by time, and keeps the
// order of events with the same time, so a slice ends before the next one on its track begins.
#include "pipewright/schedule/views/perfetto.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <optional>
#include <ostream>
#include <string>
#include <string_view>
#include <vector>

#include "pipewright/ir/dependencies.h"
#include "pipewright/ir/text/action_text.h"
#include "pipewright/schedule/simulate/memory_model.h"
#include "pipewright/schedule/views/trace.h"

namespace pipewright::schedule {
namespace {

// A message of protocol buffers, in its wire format.
class Message {
 public:
  Message& number(int field, uint64_t value) {
    varint(static_cast<uint64_t>(field) << 3);
    varint(value);
    return *this;
  }
  Message& fixed(int field, uint64_t value) {
    varint(static_cast<uint64_t>(field) << 3 | 1);
    for (int byte = 0; byte < 8; ++byte) bytes_ += static_cast<char>(value >> (8 * byte) & 0xff);
    return *this;
  }
  Message& real(int field, double value) { return fixed(field, std::bit_cast<uint64_t>(value)); }
  Message& text(int field, std::string_view value) {
    varint(static_cast<uint64_t>(field) << 3 | 2);
    varint(value.size());
    bytes_ += value;
    return *this;
  }
  Message& message(int field, const Message& value) { return text(field, value.bytes_); }

  const std::string& bytes() const { return bytes_; }

 private:
  void varint(uint64_t value) {
    for (; value >= 0x80; value >>= 7) bytes_ += static_cast<char>((value & 0x7f) | 0x80);
    bytes_ += static_cast<char>(value);
  }

  std::string bytes_;
};

// Field numbers of perfetto/trace/trace_packet.proto and of the messages within it.
namespace packet {
enum { kTimestamp = 8, kSequence = 10, kEvent = 11, kSequenceFlags = 13, kTrack = 60 };
}
namespace track {
enum { kUuid = 1, kName, kProcess, kParent = 5, kCounter = 8, kOrdering = 11, kRank = 12 };
}
namespace event {
enum {
  kNotes = 4,
  kType = 9,
  kTrack = 11,
  kCategories = 22,
  kName = 23,
  kDouble = 44,
  kFlows = 47,
  kEndingFlows = 48
};
}
enum EventType { kBegin = 1, kEnd, kInstant, kCounterValue };

class PerfettoWriter {
 public:
  PerfettoWriter(const ir::Schedule& schedule, const Costs& costs, const ir::Timeline& timeline,
                 const Standstill* standstill, std::ostream& out)
      : schedule_(schedule),
        costs_(costs),
        timeline_(timeline),
        standstill_(standstill),
        tracks_(schedule, timeline, standstill),
        work_(sorted_work(timeline)),
        unit_(1000 * microseconds_per_unit(costs.unit)),
        out_(out) {}

  void print() {
    // Nothing refers to packets before this one.
    print_packet(Message().number(packet::kSequenceFlags, 1));
    describe_tracks();
    find_flows();
    for (size_t index = 0; index < tracks_.tracks().size(); ++index) print_slices(index);
    for (const ir::Work& work : work_) {
      print_slice(work.time, slices(work),
                  Message()
                      .text(event::kCategories, ir::name(work.track))
                      .text(event::kName, ir::to_string(work.part)));
    }
    for (size_t rank = 0; rank < schedule_.rows.size(); ++rank) print_counters(rank);
    if (standstill_ != nullptr) print_stops();
  }

 private:
  enum Counter { kActivations, kBytes, kNumCounters };

  // Numbers of tracks: of processes, then of counters, of actions, and of work beside them.
  uint64_t process(size_t rank) const { return 1 + rank; }
  uint64_t counter(size_t rank, Counter counter) const {
    return 1 + schedule_.rows.size() * (1 + static_cast<size_t>(counter)) + rank;
  }
  uint64_t slices(size_t index) const {
    return 1 + schedule_.rows.size() * (1 + kNumCounters) + index;
  }
  uint64_t slices(const ir::Work& work) const {
    return slices(tracks_.tracks().size()) + work.rank * std::size(ir::kWorkTracks) +
           static_cast<uint64_t>(work.track);
  }

  void print_packet(Message& packet) {
    packet.number(packet::kSequence, 1);
    out_ << Message().message(1, packet).bytes();
  }
  void print_track(Message track) { print_packet(Message().message(packet::kTrack, track)); }
  void print_event(double time, EventType type, uint64_t on, Message event) {
    event.number(event::kType, type).number(event::kTrack, on);
    print_packet(Message()
                     .number(packet::kTimestamp, static_cast<uint64_t>(std::llround(time * unit_)))
                     .message(packet::kEvent, event));
  }
  static Message note(std::string_view name) { return Message().text(10, name); }

  void describe_tracks() {
    for (size_t rank = 0; rank < schedule_.rows.size(); ++rank) {
      const std::string name = "rank " + std::to_string(rank);
      print_track(Message()
                      .number(track::kUuid, process(rank))
                      .message(track::kProcess, Message().number(1, rank + 1).text(6, name))
                      .number(track::kOrdering, 3));  // children by their kRank
      const auto describe = [&](Counter which, std::string_view counter_name, uint64_t unit) {
        print_track(Message()
                        .number(track::kUuid, counter(rank, which))
                        .text(track::kName, counter_name)
                        .number(track::kParent, process(rank))
                        .message(track::kCounter, Message().number(3, unit))
                        .number(track::kRank, 100 + static_cast<uint64_t>(which)));
      };
      describe(kActivations, "activations", 2);
      if (costs_.has_sizes()) describe(kBytes, "bytes", 3);
    }
    for (size_t index = 0; index < tracks_.tracks().size(); ++index) {
      const TraceTracks::Track& one = tracks_.tracks()[index];
      print_track(Message()
                      .number(track::kUuid, slices(index))
                      .text(track::kName, one.name())
                      .number(track::kParent, process(one.rank))
                      .number(track::kRank, static_cast<uint64_t>(one.kind)));
    }
    std::optional<uint64_t> described;
    for (const ir::Work& work : work_) {
      if (described == slices(work)) continue;
      described = slices(work);
      print_track(Message()
                      .number(track::kUuid, *described)
                      .text(track::kName, ir::name(work.track))
                      .number(track::kParent, process(work.rank))
                      .number(track::kRank, kNumTrackKinds + static_cast<uint64_t>(work.track)));
    }
  }

  // The k-th SEND of each ordered pair of ranks and its k-th RECV have one number, from 1.
  void find_flows() {
    const ir::RankPairs pairs(schedule_.placement);
    flows_.resize(timeline_.size());
    std::vector<std::vector<uint64_t>> sent(pairs.size());
    std::vector<size_t> received(pairs.size());
    uint64_t last = 0;
    const auto each = [&](bool (*is_wanted)(ir::ActionKind), const auto& visit) {
      for (size_t rank = 0; rank < schedule_.rows.size(); ++rank) {
        for (size_t step = 0; step < schedule_.rows[rank].size(); ++step) {
          const ir::Action& action = schedule_.rows[rank][step];
          if (is_wanted(action.kind()) && tracks_.runs(rank, step))
            visit(pairs.of(action.parts()[0]), &flows_[timeline_.index(rank, step)]);
        }
      }
    };
    each(ir::is_send, [&](uint32_t pair, uint64_t* flow) {
      *flow = ++last;
      sent[pair].push_back(last);
    });
    each(ir::is_receive,
         [&](uint32_t pair, uint64_t* flow) { *flow = sent[pair][received[pair]++]; });
  }

  void print_slices(size_t index) {
    const TraceTracks::Track& one = tracks_.tracks()[index];
    for (const size_t step : one.steps) {
      const ir::Interval& interval = timeline_.at(one.rank, step);
      Message begin;
      begin.text(event::kCategories, name(one.kind))
          .text(event::kName, ir::to_string(schedule_.rows[one.rank][step]))
          .message(event::kNotes, note("step").number(4, step));
      if (const uint64_t flow = flows_[timeline_.index(one.rank, step)]; flow > 0)
        begin.fixed(one.kind == TrackKind::kSend ? event::kFlows : event::kEndingFlows, flow);
      print_slice(interval, slices(index), begin);
    }
  }
  void print_slice(const ir::Interval& interval, uint64_t on, const Message& begin) {
    print_event(interval.start, kBegin, on, begin);
    print_event(interval.end, kEnd, on, {});
  }

  void print_counters(size_t rank) {
    const MemoryModel memory(schedule_, costs_, standstill_);
    for (const MemorySample& sample : memory.along(timeline_, rank)) {
      const auto print = [&](Counter which, double value) {
        print_event(sample.time, kCounterValue, counter(rank, which),
                    Message().real(event::kDouble, value));
      };
      print(kActivations, sample.activations);
      if (costs_.has_sizes()) print(kBytes, sample.bytes);
    }
  }

  void print_stops() {
    const std::vector<Stop> stops = stops_of(schedule_, timeline_, *standstill_);
    for (size_t rank = 0; rank < stops.size(); ++rank) {
      if (stops[rank].label.empty()) continue;
      Message stop;
      stop.text(event::kCategories, "deadlock")
          .text(event::kName, "stops before " + stops[rank].label);
      for (const std::string& wait : stops[rank].waits)
        stop.message(event::kNotes, note("waits").text(6, wait));
      print_event(stops[rank].time, kInstant, process(rank), stop);
    }
  }

  const ir::Schedule& schedule_;
  const Costs& costs_;
  const ir::Timeline& timeline_;
  const Standstill* standstill_;
  const TraceTracks tracks_;
  const std::vector<ir::Work> work_;
  const double unit_;  // in nanoseconds
  std::ostream& out_;
  std::vector<uint64_t> flows_;  // by cell; 0: none
};

}  // namespace

void print_perfetto(const ir::Schedule& schedule, const Costs& costs, const ir::Timeline& timeline,
                    std::ostream& out, const Standstill* standstill) {
  PerfettoWriter(schedule, costs, timeline, standstill, out).print();
}

}  // namespace pipewright::schedule
