#ifndef PIPEWRIGHT_IR_CHECK_H_
#define PIPEWRIGHT_IR_CHECK_H_

#include <stdexcept>
#include <string>

// PW_CHECK(condition, message) is for bugs: a broken promise between two pieces of our own code, or
// a caller that breaks a documented precondition. What a user can get wrong is a Diagnostic
// instead.

namespace pipewright::ir {

// Thrown by PW_CHECK; its text names the file, the line and the condition.
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
