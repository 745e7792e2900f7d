#include "pipewright/schedule/views/trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <ostream>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "pipewright/ir/dependencies.h"
#include "pipewright/ir/text/action_text.h"
#include "pipewright/schedule/simulate/memory_model.h"

namespace pipewright::schedule {
namespace {

constexpr int kFirstWorkTrack = 1 << 20;  // TraceTracks has lower numbers
constexpr std::string_view kNames[] = {"compute", "send", "receive", "data-parallel"};

TrackKind kind_of(const ir::Action& action) {
  if (ir::is_send(action.kind())) return TrackKind::kSend;
  if (ir::is_receive(action.kind())) return TrackKind::kReceive;
  // A wait stops the computes of its rank.
  const bool is_on_compute = ir::is_compute(action.kind()) || ir::is_wait(action.kind());
  return is_on_compute ? TrackKind::kCompute : TrackKind::kDataParallel;
}

}  // namespace

std::string_view name(TrackKind kind) { return kNames[static_cast<size_t>(kind)]; }

std::string TraceTracks::Track::name() const {
  const std::string kind_name(schedule::name(kind));
  return lane == 0 ? kind_name : kind_name + " " + std::to_string(lane + 1);
}

TraceTracks::TraceTracks(const ir::Schedule& schedule, const ir::Timeline& timeline,
                         const Standstill* standstill) {
  for (size_t rank = 0; rank < schedule.rows.size(); ++rank) {
    const ir::Row& row = schedule.rows[rank];
    std::vector<size_t> steps_of_kind[kNumTrackKinds];
    for (size_t step = 0; step < row.size(); ++step) {
      const bool runs = !row[step].is_idle() &&
                        (standstill == nullptr || !standstill->blocked[timeline.index(rank, step)]);
      if (runs) steps_of_kind[static_cast<size_t>(kind_of(row[step]))].push_back(step);
    }
    std::vector<int>& tracks = track_of_.emplace_back(row.size(), -1);
    for (int kind = 0; kind < kNumTrackKinds; ++kind) {
      std::vector<size_t>& steps = steps_of_kind[kind];
      std::ranges::sort(steps, [&](size_t one, size_t other) {
        const double left = timeline.at(rank, one).start, right = timeline.at(rank, other).start;
        return left != right ? left < right : one < other;
      });
      const size_t first = tracks_.size();
      std::vector<double> free_from;  // by lane
      for (const size_t step : steps) {
        const ir::Interval& interval = timeline.at(rank, step);
        const auto is_free = [&](double time) { return time <= interval.start; };
        const auto lane =
            static_cast<size_t>(std::ranges::find_if(free_from, is_free) - free_from.begin());
        if (lane == free_from.size()) {
          free_from.push_back(0);
          tracks_.push_back({rank, static_cast<TrackKind>(kind), lane, {}});
        }
        free_from[lane] = interval.end;
        tracks_[first + lane].steps.push_back(step);
        tracks[step] = static_cast<int>(first + lane);
      }
    }
  }
}

std::vector<ir::Work> sorted_work(const ir::Timeline& timeline) {
  std::vector<ir::Work> sorted = timeline.work();
  std::ranges::sort(sorted, {}, [](const ir::Work& work) {
    return std::tuple(work.rank, work.track, work.time.start);
  });
  return sorted;
}

namespace {

using ir::Action;

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
        tracks_(schedule, timeline, standstill),
        memory_(schedule, costs, standstill) {}

  void print() {
    out_ << "{\"displayTimeUnit\": \"ms\", \"traceEvents\": [";
    for (size_t rank = 0; rank < schedule_.rows.size(); ++rank) print_names(rank);
    for (size_t rank = 0; rank < schedule_.rows.size(); ++rank) {
      print_actions(rank);
      print_counters(rank);
    }
    print_work();
    print_flows();
    if (standstill_ != nullptr) print_stops();
    out_ << "\n]}\n";
  }

 private:
  void event(const std::string& text) {
    out_ << (first_ ? "\n" : ",\n") << '{' << text << '}';
    first_ = false;
  }
  std::string time(double value) const { return fmt::format("{}", value * unit_); }

  void print_names(size_t rank) {
    event(fmt::format(
        "\"ph\": \"M\", \"name\": \"process_name\", \"pid\": {0}, \"args\": {{\"name\": "
        "\"rank {0}\"}}",
        rank));
    for (const TraceTracks::Track& track : tracks_.tracks()) {
      if (track.rank == rank) print_track(rank, track.number(), track.name());
    }
  }
  void print_track(size_t rank, int number, std::string_view name) {
    event(
        fmt::format("\"ph\": \"M\", \"name\": \"thread_name\", \"pid\": {}, \"tid\": {}, "
                    "\"args\": {{\"name\": \"{}\"}}",
                    rank, number, name));
  }

  void print_actions(size_t rank) {
    for (size_t step = 0; step < schedule_.rows[rank].size(); ++step) {
      const Action& action = schedule_.rows[rank][step];
      if (!tracks_.runs(rank, step)) continue;
      const TraceTracks::Track& track = tracks_.of(rank, step);
      const ir::Interval& interval = timeline_.at(rank, step);
      event(
          fmt::format("\"ph\": \"X\", \"name\": \"{}\", \"cat\": \"{}\", \"pid\": {}, \"tid\": {}, "
                      "\"ts\": {}, \"dur\": {}, \"args\": {{\"step\": {}}}",
                      ir::to_string(action), name(track.kind), rank, track.number(),
                      time(interval.start), time(interval.duration()), step));
    }
  }

  // On tracks after those of actions.
  void print_work() {
    std::optional<std::pair<uint32_t, ir::WorkTrack>> named;
    for (const ir::Work& work : sorted_work(timeline_)) {
      const int number = kFirstWorkTrack + static_cast<int>(work.track);
      const std::pair track(work.rank, work.track);
      if (named != track) print_track(work.rank, number, ir::name(work.track));
      named = track;
      event(
          fmt::format("\"ph\": \"X\", \"name\": \"{}\", \"cat\": \"{}\", \"pid\": {}, \"tid\": {}, "
                      "\"ts\": {}, \"dur\": {}",
                      ir::to_string(work.part), ir::name(work.track), work.rank, number,
                      time(work.time.start), time(work.time.duration())));
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
          stop.label, rank, static_cast<int>(TrackKind::kCompute), time(stop.time),
          fmt::join(stop.waits, "; ")));
    }
  }

  // Arrows from the k-th SEND of each ordered pair of ranks to its k-th RECV.
  void print_flows() {
    const ir::RankPairs pairs(schedule_.placement);
    struct End {
      size_t rank;
      int track;
      double time;
    };
    const auto end_of = [&](size_t rank, size_t step) {
      return End{rank, tracks_.of(rank, step).number(), timeline_.at(rank, step).start};
    };
    std::vector<std::vector<End>> sent(pairs.size());
    for (size_t rank = 0; rank < schedule_.rows.size(); ++rank) {
      for (size_t step = 0; step < schedule_.rows[rank].size(); ++step) {
        const Action& action = schedule_.rows[rank][step];
        if (ir::is_send(action.kind()) && tracks_.runs(rank, step))
          sent[pairs.of(action.parts()[0])].push_back(end_of(rank, step));
      }
    }
    std::vector<size_t> received(pairs.size());
    size_t id = 0;
    for (size_t rank = 0; rank < schedule_.rows.size(); ++rank) {
      for (size_t step = 0; step < schedule_.rows[rank].size(); ++step) {
        const Action& action = schedule_.rows[rank][step];
        if (!ir::is_receive(action.kind()) || !tracks_.runs(rank, step)) continue;
        const uint32_t pair = pairs.of(action.parts()[0]);
        const auto flow = [&](std::string_view phase, const End& end, std::string_view more) {
          event(
              fmt::format("\"ph\": \"{}\", \"name\": \"transfer\", \"cat\": \"transfer\", \"id\": "
                          "{}, \"pid\": {}, \"tid\": {}, \"ts\": {}{}",
                          phase, id, end.rank, end.track, time(end.time), more));
        };
        flow("s", sent[pair][received[pair]++], "");
        flow("f", end_of(rank, step), ", \"bp\": \"e\"");
        ++id;
      }
    }
  }

  const ir::Schedule& schedule_;
  const Costs& costs_;
  const ir::Timeline& timeline_;
  const Standstill* standstill_;
  std::ostream& out_;
  const double unit_;
  const TraceTracks tracks_;
  MemoryModel memory_;
  bool first_ = true;
};

}  // namespace

double microseconds_per_unit(std::string_view unit) {
  if (unit == "s") return 1e6;
  if (unit == "us") return 1;
  if (unit == "ns") return 1e-3;
  return 1e3;
}

void print_trace(const ir::Schedule& schedule, const Costs& costs, const ir::Timeline& timeline,
                 std::ostream& out, const Standstill* standstill) {
  TraceWriter(schedule, costs, timeline, standstill, out).print();
}

KinetoTraces::KinetoTraces(const ir::Schedule& schedule, const Costs& costs,
                           const ir::Timeline& timeline, const Standstill* standstill)
    : schedule_(schedule),
      timeline_(timeline),
      microseconds_(microseconds_per_unit(costs.unit)),
      tracks_(schedule, timeline, standstill) {}

void KinetoTraces::print(size_t rank, std::ostream& out) const {
  // HTA finds the rank by the pattern `"rank":\s+(\d+)`, in the first line that has it.
  out << fmt::format(
      "{{\"schemaVersion\": 1,\n"
      "\"distributedInfo\": {{\"backend\": \"nccl\", \"rank\": {}, \"world_size\": {}}},\n"
      "\"displayTimeUnit\": \"ms\", \"baseTimeNanoseconds\": 0, \"traceEvents\": [\n"
      "{{\"ph\": \"M\", \"name\": \"process_name\", \"pid\": {}, \"tid\": 0, \"args\": "
      "{{\"name\": \"rank {}\"}}}}",
      rank, num_ranks(), rank, rank);
  const auto time = [&](double value) { return std::llround(value * microseconds_); };
  for (const TraceTracks::Track& track : tracks_.tracks()) {
    if (track.rank != rank) continue;
    out << fmt::format(
        ",\n{{\"ph\": \"M\", \"name\": \"thread_name\", \"pid\": {}, \"tid\": {}, \"args\": "
        "{{\"name\": \"{}\"}}}}",
        rank, track.number(), track.name());
    for (const size_t step : track.steps) {
      const ir::Action& action = schedule_.rows[rank][step];
      const ir::Interval& interval = timeline_.at(rank, step);
      const auto start = time(interval.start);
      out << fmt::format(
          ",\n{{\"ph\": \"X\", \"cat\": \"kernel\", \"name\": \"{}{}\", \"pid\": {}, \"tid\": {}, "
          "\"ts\": {}, \"dur\": {}, \"args\": {{\"device\": {}, \"stream\": {}, \"correlation\": "
          "{}}}}}",
          ir::is_compute(action.kind()) ? "" : "ncclKernel_", ir::to_string(action), rank,
          track.number(), start, time(interval.end) - start, rank, track.number(), step);
    }
  }
  out << "\n]}\n";
}

}  // namespace pipewright::schedule
