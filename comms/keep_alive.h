#ifndef PIPEWRIGHT_COMMS_KEEP_ALIVE_H_
#define PIPEWRIGHT_COMMS_KEEP_ALIVE_H_

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

namespace pipewright::comms {

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

}  // namespace pipewright::comms

#endif  // PIPEWRIGHT_COMMS_KEEP_ALIVE_H_
