#ifndef PIPEWRIGHT_CHECKPOINT_AGREED_ERROR_H_
#define PIPEWRIGHT_CHECKPOINT_AGREED_ERROR_H_

#include <stdexcept>

namespace pipewright::checkpoint {

// An error that all ranks throw with the same text: none of them waits for another, and the text
// names the rank that it comes from, if it is one rank's.
class AgreedError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace pipewright::checkpoint

#endif  // PIPEWRIGHT_CHECKPOINT_AGREED_ERROR_H_
