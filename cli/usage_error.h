#ifndef PIPEWRIGHT_CLI_USAGE_ERROR_H_
#define PIPEWRIGHT_CLI_USAGE_ERROR_H_

#include <stdexcept>

namespace pipewright::cli {

// Thrown for an invalid command line; what() is the error message.
class UsageError : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Thrown to end a command after its errors have been printed.
struct Failed {
  int exit_code;
};

}  // namespace pipewright::cli

#endif  // PIPEWRIGHT_CLI_USAGE_ERROR_H_
