#ifndef PIPEWRIGHT_EXECUTOR_PROGRAM_CHECK_H_
#define PIPEWRIGHT_EXECUTOR_PROGRAM_CHECK_H_

#include <string>

#include "pipewright/ir/schedule.h"

// What the executor asks the compiler. Torch-free.

namespace pipewright::executor {

enum class Check {
  kShape,   // actions are inside the program's placement and microbatches
  kVerify,  // and the program passes the verifier, under its own channel model and policies
};

// The rendered diagnostics of a program that fails the check; empty if it passes.
std::string problems_of(const ir::Program& program, Check check);

// The forwards of a program alone, lowered again with the program's policies and verified: what
// evaluation runs. Throws std::invalid_argument with the diagnostics if they cannot be.
ir::Program forward_only(const ir::Program& program);

}  // namespace pipewright::executor

#endif  // PIPEWRIGHT_EXECUTOR_PROGRAM_CHECK_H_
