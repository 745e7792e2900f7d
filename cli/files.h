#ifndef PIPEWRIGHT_CLI_FILES_H_
#define PIPEWRIGHT_CLI_FILES_H_

#include <functional>
#include <iosfwd>
#include <string>

#include "pipewright/checkpoint/durable_file.h"
#include "pipewright/cli/console.h"
#include "pipewright/ir/diagnostic.h"
#include "pipewright/schedule/views/trace.h"

// Reads and writes whole files.

namespace pipewright::cli {

// Thrown if a file cannot be opened, read or written; what() contains its name and the reason.
using checkpoint::FileError;

// Reads a whole file, or stdin for "-". A regular file takes no more memory than its size. Throws
// FileError.
ir::Source read_source(const std::string& path, Console& console);

// Whether write_output() writes to stdout: for "-", and for a path such as /dev/stdout that refers
// to the file of stdout.
bool writes_to_stdout(const std::string& path);

// Calls `write` with a stream to the file at `path`, or to stdout for "-". The file is
// replaced atomically once everything is written, and keeps the permissions of the old file; after
// a failure the old file is unchanged. A pipe or a device is written to directly. Throws FileError.
void write_output(const std::string& path, Console& console,
                  const std::function<void(std::ostream&)>& write);

// Throws FileError if write_output() could not create or replace the file, so that a long command
// finds out before its work. Changes nothing.
void require_writable(const std::string& path);

// Writes one trace per rank, FOLDER/rank_0.json and so on, and creates the folder if it does not
// exist. Each file is replaced atomically. Holistic Trace Analysis takes every .json and .gz file
// of a folder for a rank, so others than these are an error. Throws FileError.
void write_trace_folder(const std::string& folder, const schedule::KinetoTraces& traces,
                        Console& console);

}  // namespace pipewright::cli

#endif  // PIPEWRIGHT_CLI_FILES_H_
