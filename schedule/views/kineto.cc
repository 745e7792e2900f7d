#include "pipewright/schedule/views/kineto.h"

#include <fmt/format.h>

#include <cmath>
#include <ostream>

#include "pipewright/ir/text/action_text.h"
#include "pipewright/schedule/views/trace.h"

namespace pipewright::schedule {

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
