#include "pipewright/comms/process/addresses.h"

#include <ifaddrs.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <stdexcept>

namespace pipewright::comms {

Addresses resolve(const std::string& host, const std::string& port, int type) {
  addrinfo hints{};
  hints.ai_socktype = type;
  addrinfo* found = nullptr;
  if (const int error = getaddrinfo(host.c_str(), port.c_str(), &hints, &found); error != 0)
    throw std::runtime_error("host `" + host + "`: " + gai_strerror(error));
  return {found, &freeaddrinfo};
}

std::string numeric(const sockaddr* address, socklen_t size) {
  std::array<char, NI_MAXHOST> text{};
  getnameinfo(address, size, text.data(), text.size(), nullptr, 0, NI_NUMERICHOST);
  return text.data();
}

// Only own addresses can be bound to.
bool is_own(const addrinfo& address) {
  sockaddr_storage any_port{};
  std::memcpy(&any_port, address.ai_addr, address.ai_addrlen);
  // The port of sockaddr_in6 lies where that of sockaddr_in does.
  reinterpret_cast<sockaddr_in6&>(any_port).sin6_port = 0;
  const int probe = socket(address.ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (probe < 0) return false;
  const bool bound =
      bind(probe, reinterpret_cast<const sockaddr*>(&any_port), address.ai_addrlen) == 0;
  close(probe);
  return bound;
}

std::vector<Interface> interfaces() {
  ifaddrs* first = nullptr;
  if (getifaddrs(&first) != 0) return {};
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owner(first, &freeifaddrs);
  std::vector<Interface> found;
  for (const ifaddrs* one = first; one; one = one->ifa_next) {
    const int family = one->ifa_addr ? one->ifa_addr->sa_family : AF_UNSPEC;
    if (family == AF_INET)
      found.push_back({one->ifa_name, numeric(one->ifa_addr, sizeof(sockaddr_in))});
    if (family == AF_INET6)
      found.push_back({one->ifa_name, numeric(one->ifa_addr, sizeof(sockaddr_in6))});
  }
  return found;
}

}  // namespace pipewright::comms
