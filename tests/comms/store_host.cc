// Hosts a store until it is killed, for store_test. Prints its process id and its port. Once `fork`
// is in the store, it forks a child that lives until nobody reads what it prints, and sets
// `forked`.
#include <sys/prctl.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "pipewright/comms/torch_gaps/bounded_store.h"

int main() {
  prctl(PR_SET_PDEATHSIG, SIGKILL);  // a stopped process reads no end of a pipe
  c10d::TCPStoreOptions options;
  options.port = 0;
  options.isServer = true;
  options.waitWorkers = false;
  pipewright::comms::BoundedStore store("", "127.0.0.1", "this process", options);
  std::printf("%d %d\n", getpid(),
              static_cast<c10d::TCPStore&>(*store.getUnderlyingStore()).getPort());
  std::fflush(stdout);
  while (!store.check({"fork"})) usleep(10000);
  if (fork() == 0) {
    while (write(STDOUT_FILENO, " ", 1) == 1) usleep(100000);
    _exit(0);
  }
  store.set("forked", "1");
  while (true) pause();
}
