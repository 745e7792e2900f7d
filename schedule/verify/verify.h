#ifndef PIPEWRIGHT_SCHEDULE_VERIFY_VERIFY_H_
#define PIPEWRIGHT_SCHEDULE_VERIFY_VERIFY_H_

#include "pipewright/ir/channel.h"
#include "pipewright/ir/diagnostic.h"
#include "pipewright/ir/schedule.h"

// The verifier: is a schedule complete, and will it run to its end? It reports all that it finds,
// each with a rule, a place and notes, and prints nothing. The schedule must have passed the checks
// of ir/shape.h. Pure functions; linear in the number of actions.
//
// Checks build on each other, and stop where a later one would have no meaning:
//
//   completeness   every (stage, microbatch) runs once forward and once backward, or none backward
//   data flow      what an action needs was made, or received, before it; SENDs and RECVs pair up
//   residency      stages are unsharded where they are used, if there is any UNSHARD or RESHARD
//   reduction      the last gradients are reduced, if there is any REDUCE_GRAD
//   channels       under the channel model, pairs meet in order and nothing waits for ever

namespace pipewright::schedule {

struct VerifyOptions {
  ir::ChannelModel channels = ir::kDefaultChannels;
  ir::ChannelCapacity capacity = ir::kDefaultCapacity;
  bool weight_free_w = false;  // W may stand on a resharded stage
};

// What a program's own policies say, and the defaults where they say nothing.
VerifyOptions options_of(const ir::Lowering& policies);

// An order: completeness, order inside each rank, and that the ranks together can run it.
bool verify(const ir::ComputeOrder& order, ir::Diagnostics* diagnostics);

// A program: all of the above. Its own policies count too: reduce-every, and weight-free-w, which
// holds where either the program or `options` says so.
bool verify(const ir::Program& program, const VerifyOptions& options, ir::Diagnostics* diagnostics);

}  // namespace pipewright::schedule

#endif  // PIPEWRIGHT_SCHEDULE_VERIFY_VERIFY_H_
