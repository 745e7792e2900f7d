#ifndef PIPEWRIGHT_FSDP_EVENT_LOG_H_
#define PIPEWRIGHT_FSDP_EVENT_LOG_H_

#include <string>
#include <vector>

namespace pipewright::fsdp {

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

}  // namespace pipewright::fsdp

#endif  // PIPEWRIGHT_FSDP_EVENT_LOG_H_
