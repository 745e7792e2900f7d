#ifndef PIPEWRIGHT_COMMS_PROCESS_PRIVATE_SOCKETS_H_
#define PIPEWRIGHT_COMMS_PROCESS_PRIVATE_SOCKETS_H_

#include <cstdint>

// Sockets that belong to this process alone. A child that it forks, such as a data loader, would
// keep them open after this process has ended, so that others wait for it, or say goodbye in its
// name. In a child they lead to /dev/null, from fork() on. Thread-safe.

namespace pipewright::comms {

void make_private(int socket);
// Closes a socket that is private.
void close_private(int socket);

// As long as it lives, the sockets of a server of this process are private: those that listen at
// this local port, and those that they accept.
class PrivateServer {
 public:
  explicit PrivateServer(uint16_t port);
  ~PrivateServer();
  PrivateServer(const PrivateServer&) = delete;
  PrivateServer& operator=(const PrivateServer&) = delete;

 private:
  const uint16_t port_;
};

}  // namespace pipewright::comms

#endif  // PIPEWRIGHT_COMMS_PROCESS_PRIVATE_SOCKETS_H_
