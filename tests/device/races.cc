// Each block remembers the accesses that a later one may conflict with. An access that is ordered
// before a new one over the same bytes is forgotten: whatever conflicts with it and is not ordered
// after it conflicts with the new one too. (A read forgets earlier reads of its own stream only,
// because two ordered reads of different streams may be ordered differently to a later write.)
// Byte ranges are bounding ranges: streams that write interleaved columns would be reported.
#include "tests/device/races.h"

#include <algorithm>

namespace pipewright::testdevice {
namespace {

constexpr size_t kMaxReports = 200;

std::string describe(const std::string& name, const Stream& stream, bool write) {
  return "`" + name + "` " + (write ? "writes" : "reads") + " on stream " +
         std::to_string(stream.id) + " of device " + std::to_string(stream.device);
}

}  // namespace

void merge(Clock& to, const Clock& from) {
  if (to.size() < from.size()) to.resize(from.size());
  for (size_t i = 0; i < from.size(); ++i) to[i] = std::max(to[i], from[i]);
}

void merge(Clock& to, const Event& event) {
  if (event.stream->run == machine().run) merge(to, *event.clock);
}

void advance_clock(Stream& stream) {
  const Operation& operation = stream.queue.front();
  merge(stream.clock, operation.host);
  if (operation.awaited) merge(stream.clock, *operation.awaited);
  if (stream.clock.size() <= stream.index) stream.clock.resize(stream.index + 1);
  stream.clock[stream.index] = stream.done + 1;
}

void check_use(const Stream& stream, const Use& use, const std::string& name) {
  std::vector<Block::Access>& accesses = use.block->accesses;
  std::erase_if(accesses, [&](const Block::Access& earlier) {
    const size_t index = earlier.stream->index;
    const bool ordered = earlier.stream == &stream ||
                         (index < stream.clock.size() && stream.clock[index] >= earlier.position);
    const bool overlaps = earlier.begin < use.end && use.begin < earlier.end;
    std::vector<std::string>& races = machine().races;
    if (!ordered && overlaps && (use.write || earlier.write) && races.size() < kMaxReports) {
      races.push_back(describe(name, stream, use.write) + " what " +
                      describe(earlier.name, *earlier.stream, earlier.write) +
                      ", and nothing orders them");
    }
    return ordered && use.begin <= earlier.begin && earlier.end <= use.end &&
           (use.write || (!earlier.write && earlier.stream == &stream));
  });
  accesses.push_back({use.begin, use.end, &stream, stream.done + 1, use.write, name});
}

}  // namespace pipewright::testdevice
