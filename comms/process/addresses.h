#ifndef PIPEWRIGHT_COMMS_PROCESS_ADDRESSES_H_
#define PIPEWRIGHT_COMMS_PROCESS_ADDRESSES_H_

#include <netdb.h>

#include <memory>
#include <string>
#include <vector>

// Names, addresses and network interfaces of hosts. No LibTorch.

namespace pipewright::comms {

using Addresses = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

// The addresses of a host, for sockets of `type`. Throws std::runtime_error that names the host if
// it has none.
Addresses resolve(const std::string& host, const std::string& port, int type);

// An address as text: "10.0.0.1".
std::string numeric(const sockaddr* address, socklen_t size);

// Whether an address is one of this host's, including every loopback address.
bool is_own(const addrinfo& address);

// A network interface of this host, with one of its addresses.
struct Interface {
  std::string name, address;
};
std::vector<Interface> interfaces();

}  // namespace pipewright::comms

#endif  // PIPEWRIGHT_COMMS_PROCESS_ADDRESSES_H_
