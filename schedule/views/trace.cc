#include "pipewright/schedule/views/trace.h"

#include <fmt/format.h>

#include <ostream>
#include <string>
#include <string_view>
#include <vector>

#include "pipewright/ir/rank_pairs.h"
#include "pipewright/ir/text/action_text.h"
#include "pipewright/schedule/simulate/memory_model.h"

namespace pipewright::schedule {
namespace {

using ir::Action;

// The tracks of a rank: their numbers and names.
enum Track { kCompute, kSend, kReceive, kDataParallel };
constexpr std::string_view kTracks[] = {"compute", "send", "receive", "data-parallel"};

Track track_of(const Action& action) {
  if (ir::is_send(action.kind())) return kSend;
  if (ir::is_receive(action.kind())) return kReceive;
  return ir::is_compute(action.kind()) ? kCompute : kDataParallel;
}

double microseconds_per_unit(std::string_view unit) {
  if (unit == "s") return 1e6;
  if (unit == "us") return 1;
  if (unit == "ns") return 1e-3;
  return 1e3;
}

class TraceWriter {
 public:
  TraceWriter(const ir::Schedule& schedule, const Costs& costs, const ir::Timeline& timeline,
              const Standstill* standstill, std::ostream& out)
      : schedule_(schedule),
        costs_(costs),
        timeline_(timeline),
        standstill_(standstill),
        out_(out),
        unit_(microseconds_per_unit(costs.unit)),
        memory_(schedule, costs, standstill) {}

  void print() {
    out_ << "{\"displayTimeUnit\": \"ms\", \"traceEvents\": [";
    for (size_t rank = 0; rank < schedule_.rows.size(); ++rank) print_names(rank);
    for (size_t rank = 0; rank < schedule_.rows.size(); ++rank) {
      print_actions(rank);
      print_counters(rank);
    }
    print_flows();
    if (standstill_ != nullptr) print_stops();
    out_ << "\n]}\n";
  }

 private:
  void event(const std::string& text) {
    out_ << (first_ ? "\n" : ",\n") << '{' << text << '}';
    first_ = false;
  }
  bool runs(size_t rank, size_t step) const {
    return !schedule_.rows[rank][step].is_idle() &&
           (standstill_ == nullptr || !standstill_->blocked[timeline_.index(rank, step)]);
  }
  std::string time(double value) const { return fmt::format("{}", value * unit_); }

  void print_names(size_t rank) {
    event(fmt::format(
        "\"ph\": \"M\", \"name\": \"process_name\", \"pid\": {0}, \"args\": {{\"name\": "
        "\"rank {0}\"}}",
        rank));
    std::vector<bool> used(std::size(kTracks));
    for (size_t step = 0; step < schedule_.rows[rank].size(); ++step) {
      if (runs(rank, step)) used[track_of(schedule_.rows[rank][step])] = true;
    }
    for (size_t track = 0; track < std::size(kTracks); ++track) {
      if (!used[track]) continue;
      event(
          fmt::format("\"ph\": \"M\", \"name\": \"thread_name\", \"pid\": {}, \"tid\": {}, "
                      "\"args\": {{\"name\": \"{}\"}}",
                      rank, track, kTracks[track]));
    }
  }

  void print_actions(size_t rank) {
    for (size_t step = 0; step < schedule_.rows[rank].size(); ++step) {
      const Action& action = schedule_.rows[rank][step];
      if (!runs(rank, step)) continue;
      const ir::Interval& interval = timeline_.at(rank, step);
      event(
          fmt::format("\"ph\": \"X\", \"name\": \"{}\", \"cat\": \"{}\", \"pid\": {}, \"tid\": {}, "
                      "\"ts\": {}, \"dur\": {}, \"args\": {{\"step\": {}}}",
                      ir::to_string(action), kTracks[track_of(action)], rank,
                      static_cast<int>(track_of(action)), time(interval.start),
                      time(interval.duration()), step));
    }
  }

  void print_counters(size_t rank) {
    const bool sizes = costs_.has_sizes();
    int last_activations = -1;
    double last_bytes = -1;
    for (const MemorySample& sample : memory_.along(timeline_, rank)) {
      if (sample.activations != last_activations) {
        last_activations = sample.activations;
        counter(rank, "activations", sample.time, fmt::format("{}", sample.activations));
      }
      if (sizes && sample.bytes != last_bytes) {
        last_bytes = sample.bytes;
        counter(rank, "bytes", sample.time, fmt::format("{}", sample.bytes));
      }
    }
  }
  void counter(size_t rank, std::string_view name, double at, const std::string& value) {
    event(
        fmt::format("\"ph\": \"C\", \"name\": \"{0}\", \"pid\": {1}, \"ts\": {2}, \"args\": "
                    "{{\"{0}\": {3}}}",
                    name, rank, time(at), value));
  }

  void print_stops() {
    const std::vector<Stop> stops = stops_of(schedule_, timeline_, *standstill_);
    for (size_t rank = 0; rank < stops.size(); ++rank) {
      const Stop& stop = stops[rank];
      if (stop.label.empty()) continue;
      event(fmt::format(
          "\"ph\": \"i\", \"name\": \"stops before {}\", \"cat\": \"deadlock\", \"s\": "
          "\"p\", \"pid\": {}, \"tid\": {}, \"ts\": {}, \"args\": {{\"waits\": \"{}\"}}",
          stop.label, rank, static_cast<int>(kCompute), time(stop.time),
          fmt::join(stop.waits, "; ")));
    }
  }

  // Arrows from the k-th SEND of each ordered pair of ranks to its k-th RECV.
  void print_flows() {
    const ir::RankPairs pairs(schedule_.placement);
    std::vector<std::vector<double>> sent(pairs.size());
    for (size_t rank = 0; rank < schedule_.rows.size(); ++rank) {
      for (size_t step = 0; step < schedule_.rows[rank].size(); ++step) {
        const Action& action = schedule_.rows[rank][step];
        if (ir::is_send(action.kind()) && runs(rank, step))
          sent[pairs.of(action.parts()[0])].push_back(timeline_.at(rank, step).start);
      }
    }
    std::vector<size_t> received(pairs.size());
    size_t id = 0;
    for (size_t rank = 0; rank < schedule_.rows.size(); ++rank) {
      for (size_t step = 0; step < schedule_.rows[rank].size(); ++step) {
        const Action& action = schedule_.rows[rank][step];
        if (!ir::is_receive(action.kind()) || !runs(rank, step)) continue;
        const uint32_t pair = pairs.of(action.parts()[0]);
        const double start = sent[pair][received[pair]++];
        const auto flow = [&](std::string_view phase, int from, Track track, double at,
                              std::string_view more) {
          event(
              fmt::format("\"ph\": \"{}\", \"name\": \"transfer\", \"cat\": \"transfer\", \"id\": "
                          "{}, \"pid\": {}, \"tid\": {}, \"ts\": {}{}",
                          phase, id, from, static_cast<int>(track), time(at), more));
        };
        flow("s", pairs.ranks(pair).first, kSend, start, "");
        flow("f", static_cast<int>(rank), kReceive, timeline_.at(rank, step).start,
             ", \"bp\": \"e\"");
        ++id;
      }
    }
  }

  const ir::Schedule& schedule_;
  const Costs& costs_;
  const ir::Timeline& timeline_;
  const Standstill* standstill_;
  std::ostream& out_;
  double unit_;
  MemoryModel memory_;
  bool first_ = true;
};

}  // namespace

void print_trace(const ir::Schedule& schedule, const Costs& costs, const ir::Timeline& timeline,
                 std::ostream& out, const Standstill* standstill) {
  TraceWriter(schedule, costs, timeline, standstill, out).print();
}

}  // namespace pipewright::schedule
