#ifndef PIPEWRIGHT_EXECUTOR_FLIGHT_COLLECTIVE_H_
#define PIPEWRIGHT_EXECUTOR_FLIGHT_COLLECTIVE_H_

#include "pipewright/comms/collective_log.h"
#include "pipewright/executor/flight_dump.h"

namespace pipewright::executor {

// A collective that a member of `group` has called, under PyTorch's name and with the sizes that
// its flight recorder would have written: fr_trace refuses names that it does not know, and takes
// sizes that do not fit for errors. Without a group, a time and a place.
FlightEntry to_flight_entry(const comms::Collective& collective, const comms::GroupState& group);

}  // namespace pipewright::executor

#endif  // PIPEWRIGHT_EXECUTOR_FLIGHT_COLLECTIVE_H_
