#ifndef PIPEWRIGHT_EXAMPLES_USAGE_ERROR_H_
#define PIPEWRIGHT_EXAMPLES_USAGE_ERROR_H_

#include <stdexcept>

namespace pipewright::examples {

// The command line is invalid: exit code 2.
class UsageError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace pipewright::examples

#endif  // PIPEWRIGHT_EXAMPLES_USAGE_ERROR_H_
