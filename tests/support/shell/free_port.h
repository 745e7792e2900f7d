#ifndef PIPEWRIGHT_TESTS_SUPPORT_SHELL_FREE_PORT_H_
#define PIPEWRIGHT_TESTS_SUPPORT_SHELL_FREE_PORT_H_

#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

namespace pipewright::tests {

// A port of the loopback interface that nobody listens on.
inline int free_port() {
  const int listener = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  bind(listener, reinterpret_cast<sockaddr*>(&address), size);
  getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size);
  close(listener);
  return ntohs(address.sin_port);
}

}  // namespace pipewright::tests

#endif  // PIPEWRIGHT_TESTS_SUPPORT_SHELL_FREE_PORT_H_
