#ifndef PIPEWRIGHT_SCHEDULE_VERIFY_VERIFY_CHECKS_H_
#define PIPEWRIGHT_SCHEDULE_VERIFY_VERIFY_CHECKS_H_

#include <string>

#include "pipewright/ir/diagnostic.h"
#include "pipewright/ir/schedule.h"
#include "pipewright/schedule/verify/verify.h"
#include "pipewright/schedule/verify/work_index.h"

// The checks of the verifier, one file each; verify.cc runs them in order. Each adds errors to
// `diagnostics`.

namespace pipewright::schedule {

// Inside each rank of an order: the inputs of an action that its own rank computes are computed
// before it.
void check_local_order(const ir::ComputeOrder& order, const WorkIndex& index,
                       ir::Diagnostics* diagnostics);

// The help for an order that passed check_local_order, but cannot run: an action whose move makes
// it run, or an empty text if none of the first few actions of the shortest cycle does.
std::string reorder_help(const ir::ComputeOrder& order);

// Inside each rank of a program: as above; also, each SEND follows the compute whose result it
// sends, each RECV precedes the compute that uses it, and SENDs and RECVs match one to one.
void check_data_flow(const ir::Program& program, const WorkIndex& index,
                     ir::Diagnostics* diagnostics);

// Residency: UNSHARD and RESHARD, if the program has any.
void check_residency(const ir::Program& program, bool weight_free_w, ir::Diagnostics* diagnostics);

// Reduction: REDUCE_GRAD, if the program has any.
void check_reduction(const ir::Program& program, ir::Diagnostics* diagnostics);

// Swaps and deadlocks, for a program that passed check_data_flow.
void check_channels(const ir::Program& program, const VerifyOptions& options,
                    ir::Diagnostics* diagnostics);

}  // namespace pipewright::schedule

#endif  // PIPEWRIGHT_SCHEDULE_VERIFY_VERIFY_CHECKS_H_
