#ifndef PIPEWRIGHT_COMMS_PROCESS_SOCKETS_H_
#define PIPEWRIGHT_COMMS_PROCESS_SOCKETS_H_

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <thread>
#include <vector>

namespace pipewright::comms {

// Calls `done` until it returns true, at most for `limit`; returns whether it did. Pauses are a
// fraction of the time waited so far, 1 / `patience`, and at most 20 ms: a wait of any length costs
// few calls and ends at most that fraction late. In the first 50 us it yields instead, because a
// thread that sleeps, however briefly, wakes later than that. For keys of a TCPStore, whose own
// wait() cannot be interrupted and prints two warnings when its time is up.
template <typename Done>
bool poll(std::chrono::milliseconds limit, int patience, const Done& done) {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point start = Clock::now();
  while (!done()) {
    const Clock::duration waited = Clock::now() - start;
    if (waited >= limit) return false;
    if (waited < std::chrono::microseconds(50)) {
      std::this_thread::yield();
      continue;
    }
    std::this_thread::sleep_for(
        std::min<Clock::duration>(waited / patience, std::chrono::milliseconds(20)));
  }
  return true;
}

// Makes a TCP connection break within 15 s after its other host has vanished, or the link to it. By
// default Linux takes 2 hours to notice that on an idle connection, and 15 minutes on one whose
// data is not acknowledged (tcp(7)). An idle connection is asked for a sign of life after 5 s, and
// every 2 s from then on. A process that only stops keeps its connections, for its kernel answers.
inline void keep_alive(int socket) {
  const auto set = [&](int level, int option, int value) {
    setsockopt(socket, level, option, &value, sizeof value);
  };
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, 5);
  set(IPPROTO_TCP, TCP_KEEPINTVL, 2);
  set(IPPROTO_TCP, TCP_KEEPCNT, 5);
  set(IPPROTO_TCP, TCP_USER_TIMEOUT, 15000);  // in ms; for data that is not acknowledged
}

// The port at this process's end of a socket; 0 of what is no socket of TCP.
uint16_t local_port(int descriptor);
// This process's sockets of TCP with that port at their own end, or at the other one. Throw
// std::filesystem::filesystem_error if /proc/self/fd cannot be read.
std::vector<int> sockets_from(uint16_t port);
std::vector<int> sockets_to(uint16_t port);

}  // namespace pipewright::comms

#endif  // PIPEWRIGHT_COMMS_PROCESS_SOCKETS_H_
