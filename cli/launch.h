#ifndef PIPEWRIGHT_CLI_LAUNCH_H_
#define PIPEWRIGHT_CLI_LAUNCH_H_

#include <string>
#include <vector>

#include "pipewright/cli/console.h"

namespace pipewright::cli {

struct LaunchOptions {
  int num_ranks;
  int master_port;                   // 0 for one that is free
  std::vector<std::string> program;  // and its arguments
};

// Runs a program as ranks on this machine: processes with torchrun's environment (RANK, LOCAL_RANK,
// WORLD_SIZE, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT; OMP_NUM_THREADS=1 unless it is set),
// whose lines come out whole with the rank in front, stdout to stdout and stderr to stderr. stdin
// is empty.
//
// When a rank fails, the others are ended, the error names it, and its exit code is given (128 +
// the signal where one ended it). SIGINT and SIGTERM go to all ranks. What does not end within five
// seconds is killed; so are processes that a rank started and left behind in its process group, and
// the ranks if this process is killed itself. 0 if all ranks gave 0.
//
// Not for use beside other children of the process, nor from several threads.
int launch(const LaunchOptions& options, Console& console);

}  // namespace pipewright::cli

#endif  // PIPEWRIGHT_CLI_LAUNCH_H_
