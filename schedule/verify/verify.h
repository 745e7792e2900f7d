#ifndef PIPEWRIGHT_SCHEDULE_VERIFY_VERIFY_H_
#define PIPEWRIGHT_SCHEDULE_VERIFY_VERIFY_H_

#include <string_view>
#include <vector>

#include "pipewright/ir/channel.h"
#include "pipewright/ir/diagnostic.h"
#include "pipewright/ir/schedule.h"
#include "pipewright/schedule/graph/peaks.h"

// The verifier decides whether a schedule is complete and runs to its end. It reports all errors as
// diagnostics, each with a rule, a place and notes, and prints nothing. The schedule must have
// passed the checks of ir/text/shape.h. Pure functions; linear in the number of actions.
//
// The checks build on each other; a check whose preconditions failed is skipped:
//
//   completeness   each (stage, microbatch) has one forward, and one backward unless the schedule
//                  is forward-only
//   data flow      the inputs of an action are computed or received before it; SENDs and RECVs
//                  match one to one
//   residency      stages are unsharded where they are used, if there is any UNSHARD or RESHARD
//   reduction      the last gradients are reduced, if there is any REDUCE_GRAD
//   waits          WAITs and what they are for match one to one, if there is any WAIT
//   channels       under the channel model, SENDs meet their own RECVs and nothing deadlocks

namespace pipewright::schedule {

struct VerifyOptions {
  ir::ChannelModel channels = ir::kDefaultChannels;
  ir::ChannelCapacity capacity = ir::kDefaultCapacity;
  bool weight_free_w = false;  // W may run on a resharded stage
};

// The options recorded in a program's lowering policies; unset ones have their defaults.
VerifyOptions options_of(const ir::Lowering& policies);

// Verifies a compute order: completeness, data flow inside each rank, and that all ranks together
// reach the end. Returns true if it adds no error. Appends the checks that ran, "completeness" and
// "order", to `checked` if it is not null.
bool verify(const ir::ComputeOrder& order, ir::Diagnostics* diagnostics,
            std::vector<std::string_view>* checked = nullptr);

// Verifies a program: all of the above. Two policies of the program apply too: reduce-every, and
// weight-free-w, which holds if either the program or `options` sets it. Returns true if it adds no
// error. Appends the checks that ran, "completeness", "data_flow", "residency", "reduction",
// "waits" if it has any, and "channels", to `checked` if it is not null.
bool verify(const ir::Program& program, const VerifyOptions& options, ir::Diagnostics* diagnostics,
            std::vector<std::string_view>* checked = nullptr);

// What a verified program needs on one rank.
struct RankCertificate {
  Peak<int> activations;       // live activations, see peak_activations()
  Peak<int> receive_buffers;   // each from its RECV to the end of the compute that uses it
  ReceiveSlots receive_slots;  // the same with buffers that are allocated once
  Peak<int> unsharded_stages;  // each from UNSHARD to RESHARD
  int communicators = 0;       // see communicators_per_rank()
};

// Certificates by rank, for a program that verify() accepts. A pure function, linear in the number
// of actions.
std::vector<RankCertificate> certify(const ir::Program& program);

// The communicators that each rank has for its SENDs and RECVs under the program's channel model
// (ir/channel.h), as comms/channels.h makes them: with `edge` one per peer and direction that it
// uses, with `peer` one per peer, with `rank` the one that all ranks share. Linear in the number of
// actions.
std::vector<int> communicators_per_rank(const ir::Program& program);

}  // namespace pipewright::schedule

#endif  // PIPEWRIGHT_SCHEDULE_VERIFY_VERIFY_H_
