#ifndef PIPEWRIGHT_SCHEDULE_VERIFY_VERIFY_CHECKS_H_
#define PIPEWRIGHT_SCHEDULE_VERIFY_VERIFY_CHECKS_H_

#include <span>
#include <string>

#include "pipewright/ir/diagnostic.h"
#include "pipewright/ir/schedule.h"
#include "pipewright/schedule/graph/channel_graph.h"
#include "pipewright/schedule/graph/deadlock.h"
#include "pipewright/schedule/verify/verify.h"
#include "pipewright/schedule/verify/work_index.h"

// The checks of the verifier, one file each; verify.cc runs them in order. Each adds errors to
// `diagnostics`.

namespace pipewright::schedule {

// Whether a schedule has no error that WorkIndex::build() and check_local_order() find, or, for a
// program whose transfers match, check_data_flow(). Much faster than those, which find and word the
// errors.
bool is_complete_in_order(const ir::Schedule& schedule, ir::Level level);

// Whether a program has no error under ir::ChannelModel::kEdge, with any capacity, except those
// that check_data_parallel() finds. Also false if the program has 2^30 actions or more.
bool runs_on_edges(const ir::Program& program);

// Inside each rank of an order: the inputs of an action that its own rank computes are computed
// before it.
void check_local_order(const ir::ComputeOrder& order, const WorkIndex& index,
                       ir::Diagnostics* diagnostics);

// The help for an order that passed check_local_order, but cannot run: an action whose move makes
// it run, or an empty text if none of the first few actions of the cycle that check_can_run()
// reports does.
std::string reorder_help(const ir::ComputeOrder& order, std::span<const Wait> cycle);

// Inside each rank of a program: as above; also, each SEND follows the compute whose result it
// sends, and each RECV precedes the compute that uses it. Unless `transfers_match`, also that SENDs
// and RECVs match one to one.
void check_data_flow(const ir::Program& program, const WorkIndex& index, bool transfers_match,
                     ir::Diagnostics* diagnostics);

// Residency: UNSHARD and RESHARD, if the program has any. Then reduction: REDUCE_GRAD, if the
// program has any.
void check_data_parallel(const ir::Program& program, bool weight_free_w,
                         ir::Diagnostics* diagnostics);

// WAITs: each is after the SEND or REDUCE_GRAD that it is for, and each of those has one, if the
// program has WAITs of its kind. Returns whether it has any WAITs. `sends_are_checked`: those of
// SENDs are known to be right.
bool check_waits(const ir::Program& program, bool sends_are_checked, ir::Diagnostics* diagnostics);

// Swaps, for a program that passed check_data_flow: SENDs that do not meet their own RECVs.
void check_pairing(const ir::Program& program, const ChannelGraph& graph,
                   ir::Diagnostics* diagnostics);

// Deadlocks, for a program that passed check_data_flow. `graph` is that of `options`.
void check_deadlock(const ir::Program& program, const VerifyOptions& options,
                    const ChannelGraph& graph, ir::Diagnostics* diagnostics);

}  // namespace pipewright::schedule

#endif  // PIPEWRIGHT_SCHEDULE_VERIFY_VERIFY_CHECKS_H_
