#ifndef PIPEWRIGHT_CLI_USAGE_ERROR_H_
#define PIPEWRIGHT_CLI_USAGE_ERROR_H_

#include <stdexcept>

namespace pipewright::cli {

// The words on the command line are wrong; what() says how.
class UsageError : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Ends a command whose errors have been printed.
struct Failed {
  int exit_code;
};

}  // namespace pipewright::cli

#endif  // PIPEWRIGHT_CLI_USAGE_ERROR_H_
