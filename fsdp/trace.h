#ifndef PIPEWRIGHT_FSDP_TRACE_H_
#define PIPEWRIGHT_FSDP_TRACE_H_

#include <string>
#include <vector>

namespace pipewright::fsdp {

enum class Event {
  kUnshard,       // a gather is posted
  kWaitUnshard,   // and waited for
  kReshard,       // gathered parameters are freed
  kPreBackward,   // the first gradient of an output
  kPostBackward,  // the unit's backward has ended, that of one forward where there are several
  kPrefetch,      // a decision of backward prefetch: `unit` is the one to gather, empty for none
  kReduce,        // a reduction is posted
  kWaitReduce,    // and waited for
};

struct TraceEntry {
  Event event;
  std::string unit;
  bool operator==(const TraceEntry&) const = default;
};

// What the units of one model do, in the order in which they do it; on the threads of one rank.
using Trace = std::vector<TraceEntry>;

}  // namespace pipewright::fsdp

#endif  // PIPEWRIGHT_FSDP_TRACE_H_
