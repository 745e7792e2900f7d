#include "pipewright/comms/process/sockets.h"

#include <filesystem>
#include <string>

namespace pipewright::comms {
namespace {

// getsockname() for the own end of a socket, getpeername() for the other one.
using NameOf = int (*)(int, sockaddr*, socklen_t*) noexcept;

// 0 of what is no socket of TCP.
uint16_t port_of(int descriptor, NameOf name_of) {
  sockaddr_storage name{};
  socklen_t size = sizeof name;
  if (name_of(descriptor, reinterpret_cast<sockaddr*>(&name), &size) != 0) return 0;
  if (name.ss_family == AF_INET) return ntohs(reinterpret_cast<const sockaddr_in&>(name).sin_port);
  if (name.ss_family == AF_INET6)
    return ntohs(reinterpret_cast<const sockaddr_in6&>(name).sin6_port);
  return 0;
}

std::vector<int> sockets_of(uint16_t port, NameOf name_of) {
  std::vector<int> found;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    const int descriptor = std::stoi(entry.path().filename());
    if (port != 0 && port_of(descriptor, name_of) == port) found.push_back(descriptor);
  }
  return found;
}

}  // namespace

uint16_t local_port(int descriptor) { return port_of(descriptor, getsockname); }

std::vector<int> sockets_from(uint16_t port) { return sockets_of(port, getsockname); }
std::vector<int> sockets_to(uint16_t port) { return sockets_of(port, getpeername); }

}  // namespace pipewright::comms
