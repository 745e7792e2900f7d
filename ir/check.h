#ifndef PIPEWRIGHT_IR_CHECK_H_
#define PIPEWRIGHT_IR_CHECK_H_

#include <stdexcept>
#include <string>

// PW_CHECK(condition, message) throws InternalError if the condition is false. It is for bugs:
// a violated invariant, or a caller that breaks a documented precondition. Errors in a user's input
// are Diagnostics instead.

namespace pipewright::ir {

// Thrown by PW_CHECK. what() contains the source file, line, condition and message.
class InternalError : public std::logic_error {
  using std::logic_error::logic_error;
};

[[noreturn]] inline void check_failed(const char* file, int line, const char* condition,
                                      const std::string& message) {
  throw InternalError(std::string(file) + ":" + std::to_string(line) +
                      ": check failed: " + condition + ": " + message);
}

}  // namespace pipewright::ir

#define PW_CHECK(condition, message) \
  ((condition) ? (void)0 : ::pipewright::ir::check_failed(__FILE__, __LINE__, #condition, message))

#endif  // PIPEWRIGHT_IR_CHECK_H_
