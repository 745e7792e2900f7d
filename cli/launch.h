#ifndef PIPEWRIGHT_CLI_LAUNCH_H_
#define PIPEWRIGHT_CLI_LAUNCH_H_

#include <string>
#include <vector>

#include "pipewright/cli/console.h"

namespace pipewright::cli {

struct LaunchOptions {
  int num_ranks;
  int master_port;                   // 0: a free port, which no other program gets meanwhile
  std::vector<std::string> program;  // the program and its arguments
};

// Runs a program as ranks on this machine, one process per rank, with torchrun's environment
// variables (RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT;
// OMP_NUM_THREADS=1 unless it is set). Forwards their output line by line, prefixed with the rank,
// stdout to stdout and stderr to stderr. Their stdin is empty.
//
// If a rank fails, prints an error that names it, sends SIGTERM to the others, and returns its exit
// code, or 128 + N if signal N ended it. Forwards SIGINT, SIGTERM and SIGHUP to all ranks and then
// returns 128 + N. Ranks that still run five seconds after that are killed. At the end, processes
// that a rank started and left in its process group are killed too. If this process itself is
// killed, so are the ranks. Returns 0 if all ranks exit with 0.
//
// Call it only in a process without other threads or children.
int launch(const LaunchOptions& options, Console& console);

}  // namespace pipewright::cli

#endif  // PIPEWRIGHT_CLI_LAUNCH_H_
