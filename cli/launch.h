#ifndef PIPEWRIGHT_CLI_LAUNCH_H_
#define PIPEWRIGHT_CLI_LAUNCH_H_

#include <string>
#include <vector>

#include "pipewright/cli/console.h"

namespace pipewright::cli {

struct LaunchOptions {
  int num_ranks;
  int master_port;                   // 0: a free one
  std::vector<std::string> program;  // and its arguments
};

// Runs a program as ranks on this machine: processes with torchrun's environment (RANK, LOCAL_RANK,
// WORLD_SIZE, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT; OMP_NUM_THREADS=1 unless it is set).
// Their lines are forwarded whole, prefixed with the rank, stdout to stdout and stderr to stderr.
// Their stdin is empty.
//
// When a rank fails, the others are terminated, an error names it, and its exit code is returned,
// or 128 + the signal that ended it. SIGINT and SIGTERM are passed on to all ranks. Ranks that are
// still running five seconds later are killed; so are processes that a rank started and left in its
// process group, and the ranks if this process is killed itself. Returns 0 if all ranks did.
//
// Not for a process that has other children, and not for several threads at once.
int launch(const LaunchOptions& options, Console& console);

}  // namespace pipewright::cli

#endif  // PIPEWRIGHT_CLI_LAUNCH_H_
