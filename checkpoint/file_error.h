#ifndef PIPEWRIGHT_CHECKPOINT_FILE_ERROR_H_
#define PIPEWRIGHT_CHECKPOINT_FILE_ERROR_H_

#include <stdexcept>
#include <string_view>

namespace pipewright::checkpoint {

// Thrown if a file or folder cannot be opened, read or written; what() contains its name and the
// reason: "cannot write `ckpt/step-000010.tmp/shard-...`: No space left on device".
class FileError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
  // `what` is a verb, and `error` a value of errno.
  FileError(std::string_view what, std::string_view path, int error);
};

}  // namespace pipewright::checkpoint

#endif  // PIPEWRIGHT_CHECKPOINT_FILE_ERROR_H_
