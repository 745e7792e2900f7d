#ifndef PIPEWRIGHT_SCHEDULE_VERIFY_VERIFY_POLICIES_H_
#define PIPEWRIGHT_SCHEDULE_VERIFY_VERIFY_POLICIES_H_

#include <optional>
#include <string>

#include "pipewright/ir/diagnostic.h"
#include "pipewright/ir/lowering.h"
#include "pipewright/ir/schedule.h"

// Judges the lowering policies that the header of a file declares: each is a promise about the
// rows. reduce-every is judged by verify(), which also uses channels, capacity and weight-free-w.
// Each broken policy is one error, at the first action that breaks it. Pure functions.

namespace pipewright::schedule {

// Judges forward-only, merge-backward and split-backward; in a compute order, the other policies
// say how to lower it. Returns true if it adds no error. Linear in the number of actions.
bool verify_policies(const ir::ComputeOrder& order, ir::Diagnostics* diagnostics);

// Judges all policies of a program, which must be one that verify() accepts under its recorded
// channels. Returns true if it adds no error. Costs as much as the lowering passes whose policies
// are declared.
bool verify_policies(const ir::Program& program, ir::Diagnostics* diagnostics);

// What is wrong with the length or the numbers of a list of lookaheads, as the end of a message, or
// nullopt. As in PyTorch, a list has one distance per rank, none above the residency.
std::optional<std::string> lookahead_problem(const ir::Lookahead& lookahead, int num_ranks,
                                             int residency);

}  // namespace pipewright::schedule

#endif  // PIPEWRIGHT_SCHEDULE_VERIFY_VERIFY_POLICIES_H_
