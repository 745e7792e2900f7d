#ifndef PIPEWRIGHT_SCHEDULE_VERIFY_H_
#define PIPEWRIGHT_SCHEDULE_VERIFY_H_

#include "ir/channel.h"
#include "ir/diagnostic.h"
#include "ir/schedule.h"

// The verifier: is a schedule complete, and will it run to its end? It reports all that it finds,
// each with a rule, a place and notes, and prints nothing. The schedule must have passed the checks
// of ir/shape.h. Pure functions; linear in the number of actions.
//
// Checks build on each other, and stop where a later one would have no meaning:
//
//   completeness   every (stage, microbatch) runs exactly once forward and once backward, or no
//   backward stands at all data flow      what an action needs was made, or received, before it;
//   SENDs and RECVs are one to one residency      stages are unsharded where they are used (a
//   program that has UNSHARD or RESHARD) reduction      gradients are reduced after the last of
//   them (a program that has REDUCE_GRAD) channels       under the channel model, pairs meet in
//   order and nothing waits for ever

namespace pipewright::schedule {

struct VerifyOptions {
  ir::ChannelModel channels = ir::ChannelModel::kEdge;
  ir::ChannelCapacity capacity = 0;
  bool weight_free_w = false;  // W may stand on a resharded stage
};

// An order: completeness, order inside each rank, and that the ranks together can run it.
bool verify(const ir::ComputeOrder& order, ir::Diagnostics* diagnostics);

// A program: all of the above. Its own policies hold where `options` leave room: reduce-every.
bool verify(const ir::Program& program, const VerifyOptions& options, ir::Diagnostics* diagnostics);

}  // namespace pipewright::schedule

#endif  // PIPEWRIGHT_SCHEDULE_VERIFY_H_
