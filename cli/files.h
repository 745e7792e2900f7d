#ifndef PIPEWRIGHT_CLI_FILES_H_
#define PIPEWRIGHT_CLI_FILES_H_

#include <functional>
#include <iosfwd>
#include <stdexcept>
#include <string>

#include "pipewright/cli/console.h"
#include "pipewright/ir/source.h"

// Reading and writing of files, in the ways that the commands need.

namespace pipewright::cli {

// A file cannot be opened, read or written; what() names it and says why.
class FileError : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

// All of a file, or of stdin for "-". Takes the file's size in memory and no more.
ir::Source read_source(const std::string& path, Console& console);

// Calls `write` with a stream to the file at `path`, or to stdout for "-" and for "". The file
// appears when all is written, with the permissions of the one that it replaces; on any failure
// there is no trace of it. What is not a regular file, a pipe say, is written as it is.
void write_output(const std::string& path, Console& console,
                  const std::function<void(std::ostream&)>& write);

}  // namespace pipewright::cli

#endif  // PIPEWRIGHT_CLI_FILES_H_
