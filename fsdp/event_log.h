#ifndef PIPEWRIGHT_FSDP_EVENT_LOG_H_
#define PIPEWRIGHT_FSDP_EVENT_LOG_H_

#include <string>
#include <vector>

namespace pipewright::fsdp {

enum class Event {
  kUnshard,       // an all-gather is posted
  kWaitUnshard,   // and waited for
  kReshard,       // gathered parameters are freed
  kPreBackward,   // the first gradient of an output arrives
  kPostBackward,  // the backward of the unit has ended; of one forward if there are several
  kPrefetch,      // a decision of backward prefetch: `unit` is gathered, empty if none is
  kReduce,        // a reduce-scatter is posted
  kWaitReduce,    // and waited for
};

struct EventRecord {
  Event event;
  std::string unit;
  bool operator==(const EventRecord&) const = default;
};

// What the units of one model do, in order, on the threads of one rank.
using EventLog = std::vector<EventRecord>;

}  // namespace pipewright::fsdp

#endif  // PIPEWRIGHT_FSDP_EVENT_LOG_H_
