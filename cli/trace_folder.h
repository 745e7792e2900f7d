#ifndef PIPEWRIGHT_CLI_TRACE_FOLDER_H_
#define PIPEWRIGHT_CLI_TRACE_FOLDER_H_

#include <string>

#include "pipewright/cli/console.h"
#include "pipewright/schedule/views/trace.h"

namespace pipewright::cli {

// Writes one trace per rank, FOLDER/rank_0.json and so on, and creates the folder if it does not
// exist. Each file is replaced atomically. Holistic Trace Analysis takes every .json and .gz file
// of a folder for a rank, so others than these are an error. Throws FileError.
void write_trace_folder(const std::string& folder, const schedule::KinetoTraces& traces,
                        Console& console);

}  // namespace pipewright::cli

#endif  // PIPEWRIGHT_CLI_TRACE_FOLDER_H_
