#ifndef PIPEWRIGHT_FSDP_EVENT_LOG_H_
#define PIPEWRIGHT_FSDP_EVENT_LOG_H_

#include <memory>
#include <string>
#include <vector>

namespace pipewright::fsdp {

class Sharded;

// What happens in a unit, for tests.
enum class Event {
  kUnshard,       // an all-gather is posted
  kWaitUnshard,   // an all-gather is waited for
  kReshard,       // gathered parameters are freed
  kPreBackward,   // the first gradient of an output arrives
  kPostBackward,  // the unit's backward has ended, or that of one of its forwards
  kPrefetch,      // a decision of backward prefetch; `unit`: the unit to gather, or empty
  kReduce,        // a reduce-scatter is posted
  kWaitReduce,    // a reduce-scatter is waited for
};

struct EventRecord {
  Event event;
  std::string unit;
  bool operator==(const EventRecord&) const = default;
};

// The events of all units of one model on one rank, in order.
using EventLog = std::vector<EventRecord>;

// Records the events of `unit` and of those nested in it, as long as it is the root.
void record_events(const Sharded& unit, std::shared_ptr<EventLog> log);

}  // namespace pipewright::fsdp

#endif  // PIPEWRIGHT_FSDP_EVENT_LOG_H_
