#ifndef PIPEWRIGHT_EXECUTOR_PROGRAM_PROGRAM_CHECK_H_
#define PIPEWRIGHT_EXECUTOR_PROGRAM_PROGRAM_CHECK_H_

#include <string>

#include "pipewright/ir/schedule.h"

// The executor's calls into the compiler: the verification of a program, and the lowering of its
// forwards alone. Torch-free.

namespace pipewright::executor {

enum class Check {
  kShape,   // actions are inside the program's placement and microbatches
  kVerify,  // the program also passes the verifier, under its own channel model and policies
};

// The rendered diagnostics of a program that fails the check; empty if it passes.
std::string problems_of(const ir::Program& program, Check check);

// Returns the program that evaluation runs: the forwards of `program`, lowered again with its
// policies and verified. Throws std::invalid_argument with the diagnostics if lowering or
// verification fails.
ir::Program forward_only(const ir::Program& program);

}  // namespace pipewright::executor

#endif  // PIPEWRIGHT_EXECUTOR_PROGRAM_PROGRAM_CHECK_H_
