#ifndef PIPEWRIGHT_IR_ERRORS_H_
#define PIPEWRIGHT_IR_ERRORS_H_

#include <stdexcept>

// Which exception to throw in comms, autograd, modules, fsdp, ddp, executor and examples. The
// compiler does not throw for what a user can get wrong; it reports a Diagnostic (diagnostic.h).
//
//   std::invalid_argument   an argument is invalid, whatever was called before: a stage of another
//                           rank, a mesh that does not match the world. Nothing has happened yet.
//   ContractError           the caller broke a documented contract: calls in the wrong order, or a
//                           change to something that must stay as it is. Fix the calling code.
//   executor::StepError     a step failed, on this rank or on another one. The executor wraps
//                           whatever was thrown in the step in a StepError, so that each rank
//                           reports the same first cause.
//   std::runtime_error      anything else that fails at run time: a peer, a file, a device, or
//                           tensors that are not what the peers expect.
//   ir::InternalError       a bug in pipewright (PW_CHECK in check.h).
//
// Message: `what is wrong, expected X, got Y`, in lower case, without a full stop.

namespace pipewright {

// The caller broke a documented contract: the calls are in the wrong order, or something changed
// that must not change.
class ContractError : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

}  // namespace pipewright

#endif  // PIPEWRIGHT_IR_ERRORS_H_
