#ifndef PIPEWRIGHT_SCHEDULE_COMPILE_REQUESTED_POLICIES_H_
#define PIPEWRIGHT_SCHEDULE_COMPILE_REQUESTED_POLICIES_H_

#include <string>
#include <string_view>
#include <vector>

#include "pipewright/ir/diagnostic.h"
#include "pipewright/ir/lowering.h"
#include "pipewright/ir/schedule.h"
#include "pipewright/schedule/compile/compile.h"

// How the lowering policies of a request combine with those that its source records; part of
// compile(). A requested policy wins over a recorded one. Pure functions.

namespace pipewright::schedule {

std::vector<OverriddenPolicy> overridden_policies(const ir::Lowering& requested,
                                                  const ir::Lowering& recorded);

// Checks that each requested policy has a valid value and applies to a compilation between these
// levels. `source` names the source in errors. Returns whether there was no error.
bool check_policies(const ir::Lowering& requested, ir::Level from, ir::Level to,
                    std::string_view source, ir::Diagnostics* diagnostics);

// The policies to lower an order with: the requested ones, completed by those that the order
// records for its lowering. Recorded transforms describe its rows already.
ir::Lowering combined_policies(const ir::Lowering& requested, const ir::Lowering& recorded);

// Replaces the recorded channel model by the requested one. RECVs that were placed as late as
// another model allows are no longer known to be.
void set_channels(const ir::Lowering& requested, ir::Lowering* recorded);

// Whether any policy asks to transform a compute order.
bool changes_order(const ir::Lowering& policies);

// Checks a list of lookaheads, and, after lowering, that the residency holds: a compound of two
// stages needs both. An error is a usage error if the policy was requested, and otherwise one in
// the header of the source. Both return whether there was no error.
bool check_lookahead(const ir::Lowering& requested, const ir::Lowering& policies, int num_ranks,
                     ir::Diagnostics* diagnostics);
bool check_residency(const ir::Lowering& requested, const ir::Lowering& policies,
                     const ir::ComputeOrder& order, const ir::Program& program,
                     ir::Diagnostics* diagnostics);

// Likewise that the policies of WAITs hold: programs for torch 2.11 have none, and a limit of SENDs
// can be too low.
bool check_wait_policies(const ir::Lowering& requested, const ir::Lowering& policies,
                         const ir::Program& program, ir::Diagnostics* diagnostics);

}  // namespace pipewright::schedule

#endif  // PIPEWRIGHT_SCHEDULE_COMPILE_REQUESTED_POLICIES_H_
