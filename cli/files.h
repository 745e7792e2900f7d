#ifndef PIPEWRIGHT_CLI_FILES_H_
#define PIPEWRIGHT_CLI_FILES_H_

#include <functional>
#include <iosfwd>
#include <stdexcept>
#include <string>

#include "pipewright/cli/console.h"
#include "pipewright/ir/source.h"

// Reads and writes whole files.

namespace pipewright::cli {

// A file cannot be opened, read or written; what() names it and the reason.
class FileError : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Reads all of a file, or of stdin for "-". Takes no more memory than the file's size. Throws
// FileError.
ir::Source read_source(const std::string& path, Console& console);

// Calls `write` with a stream to the file at `path`, or to stdout for "-" and for "". The file
// appears when all is written, with the permissions of the one that it replaces; after a failure
// nothing of it is left. A pipe or a device is written to directly. Throws FileError.
void write_output(const std::string& path, Console& console,
                  const std::function<void(std::ostream&)>& write);

}  // namespace pipewright::cli

#endif  // PIPEWRIGHT_CLI_FILES_H_
