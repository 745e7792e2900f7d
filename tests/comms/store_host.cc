// Hosts a store until it is killed, for store_test. Prints its process id and its port.
#include <sys/prctl.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

int main() {
  prctl(PR_SET_PDEATHSIG, SIGKILL);  // a stopped process reads no end of a pipe
  c10d::TCPStoreOptions options;
  options.port = 0;
  options.isServer = true;
  options.waitWorkers = false;
  const c10d::TCPStore store("127.0.0.1", options);
  std::printf("%d %d\n", getpid(), store.getPort());
  std::fflush(stdout);
  while (true) pause();
}
