#include "pipewright/executor/gather_recording.h"

#include <cstring>
#include <vector>

namespace pipewright::executor {

ir::Timeline gather_recording(comms::World& world, const std::string& key,
                              const ir::Program& program, int rank, const Recorder& recorder,
                              const comms::NamedClock& clock, const comms::ClockOffset& start,
                              std::chrono::milliseconds timeout) {
  const comms::ClockOffset end = comms::clock_offset(world, key + "/clock", rank,
                                                     program.placement.num_ranks(), clock, timeout);
  std::vector<ir::Interval> own = recorder.intervals();
  for (ir::Interval& one : own) {
    one.start = comms::to_other_clock(one.start, start, end);
    one.end = comms::to_other_clock(one.end, start, end);
  }
  const auto key_of = [&](size_t other) { return key + "/rank/" + std::to_string(other); };
  const comms::StorePtr& store = world.store();
  if (rank != 0) {
    std::vector<uint8_t> bytes(own.size() * sizeof(ir::Interval));
    std::memcpy(bytes.data(), own.data(), bytes.size());
    store->set(key_of(static_cast<size_t>(rank)), bytes);
    return {};
  }
  std::vector<std::vector<ir::Interval>> all(program.rows.size());
  all[0] = std::move(own);
  for (size_t other = 1; other < all.size(); ++other) {
    const std::string bytes = world.failures().wait_for(
        key_of(other), timeout,
        "program rank " + std::to_string(other) + " did not bring its recording within " +
            std::to_string(timeout.count()) + " ms");
    store->deleteKey(key_of(other));
    all[other].resize(program.rows[other].size());
    if (bytes.size() != all[other].size() * sizeof(ir::Interval))
      throw std::runtime_error("the recording of program rank " + std::to_string(other) +
                               ": expected " + std::to_string(all[other].size()) +
                               " actions, got " +
                               std::to_string(bytes.size() / sizeof(ir::Interval)));
    std::memcpy(all[other].data(), bytes.data(), bytes.size());
  }
  return merge_recordings(program, all);
}

}  // namespace pipewright::executor
