#include "pipewright/comms/lifeline.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <memory>
#include <stdexcept>

namespace pipewright::comms {
namespace {

constexpr const char* kKey = "lifeline";  // HOST PORT of rank 0
constexpr size_t kRankBytes = sizeof(uint32_t);

using Addresses = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

Addresses resolve(const std::string& host, const std::string& port, int type) {
  addrinfo hints{};
  hints.ai_socktype = type;
  addrinfo* found = nullptr;
  if (const int error = getaddrinfo(host.c_str(), port.c_str(), &hints, &found); error != 0)
    throw std::runtime_error("host `" + host + "`: " + gai_strerror(error));
  return {found, &freeaddrinfo};
}

void set(int socket, int level, int option, int value) {
  setsockopt(socket, level, option, &value, sizeof value);
}

void keep_alive(int socket) {
  set(socket, SOL_SOCKET, SO_KEEPALIVE, 1);
  set(socket, IPPROTO_TCP, TCP_KEEPIDLE, 5);
  set(socket, IPPROTO_TCP, TCP_KEEPINTVL, 2);
  set(socket, IPPROTO_TCP, TCP_KEEPCNT, 5);
}

std::string numeric(const sockaddr_storage& address, socklen_t size) {
  std::array<char, NI_MAXHOST> text{};
  getnameinfo(reinterpret_cast<const sockaddr*>(&address), size, text.data(), text.size(), nullptr,
              0, NI_NUMERICHOST);
  return text.data();
}

// A name of this host for those who can reach `host`: the address that packets to `host` leave
// from, or `host` itself if it is this host.
std::string own_name(const std::string& host) {
  const Addresses addresses = resolve(host, "1", SOCK_DGRAM);
  for (const addrinfo* to = addresses.get(); to; to = to->ai_next) {
    const int probe = socket(to->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    sockaddr_storage from{};
    socklen_t size = sizeof from;
    // Connecting a datagram socket sends nothing.
    const bool found = probe >= 0 && connect(probe, to->ai_addr, to->ai_addrlen) == 0 &&
                       getsockname(probe, reinterpret_cast<sockaddr*>(&from), &size) == 0;
    if (probe >= 0) close(probe);
    if (!found) continue;
    sockaddr_storage target{};
    std::memcpy(&target, to->ai_addr, to->ai_addrlen);
    const std::string own = numeric(from, size);
    return own == numeric(target, to->ai_addrlen) || own.starts_with("127.") ? host : own;
  }
  return host;
}

// Listens on all addresses of this host. Returns the port.
in_port_t listen_anywhere(int* listener) {
  *listener = socket(AF_INET6, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  sockaddr_in6 any{};
  any.sin6_family = AF_INET6;
  any.sin6_addr = in6addr_any;
  if (*listener >= 0) set(*listener, IPPROTO_IPV6, IPV6_V6ONLY, 0);
  if (*listener < 0 || bind(*listener, reinterpret_cast<sockaddr*>(&any), sizeof any) != 0) {
    if (*listener >= 0) close(*listener);
    *listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    sockaddr_in any4{};
    any4.sin_family = AF_INET;
    any4.sin_addr.s_addr = htonl(INADDR_ANY);
    if (*listener < 0 || bind(*listener, reinterpret_cast<sockaddr*>(&any4), sizeof any4) != 0)
      throw std::runtime_error(std::string("rank 0 cannot listen: ") + std::strerror(errno));
  }
  if (::listen(*listener, SOMAXCONN) != 0)
    throw std::runtime_error(std::string("rank 0 cannot listen: ") + std::strerror(errno));
  sockaddr_in6 bound{};  // its port lies where that of sockaddr_in does
  socklen_t size = sizeof bound;
  getsockname(*listener, reinterpret_cast<sockaddr*>(&bound), &size);
  return ntohs(bound.sin6_port);
}

}  // namespace

Lifeline::Lifeline(int rank, c10d::Store& store, const std::string& store_host,
                   std::chrono::milliseconds timeout) {
  if (rank > 0) {
    connect(rank, store, timeout);
    return;
  }
  try {
    listen(store, store_host);
  } catch (...) {
    if (listener_ >= 0) close(listener_);
    throw;
  }
}

Lifeline::~Lifeline() {
  for (const Connection& connection : connections_) close(connection.socket);
  if (listener_ >= 0) close(listener_);
  if (own_ < 0) return;
  const char goodbye = 0;
  send(own_, &goodbye, 1, MSG_NOSIGNAL);
  close(own_);
}

void Lifeline::listen(c10d::Store& store, const std::string& store_host) {
  const in_port_t port = listen_anywhere(&listener_);
  store.set(kKey, own_name(store_host) + " " + std::to_string(port));
}

void Lifeline::connect(int rank, c10d::Store& store, std::chrono::milliseconds timeout) {
  store.wait({kKey}, timeout);
  const std::string place = store.get_to_str(kKey);
  const size_t space = place.find(' ');
  const Addresses addresses = resolve(place.substr(0, space), place.substr(space + 1), SOCK_STREAM);
  int error = 0;
  for (const addrinfo* to = addresses.get(); to; to = to->ai_next) {
    own_ = socket(to->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (own_ < 0) continue;
    timeval limit{};
    limit.tv_sec = timeout.count() / 1000;
    limit.tv_usec = timeout.count() % 1000 * 1000;
    setsockopt(own_, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
    const uint32_t own = htonl(static_cast<uint32_t>(rank));
    if (::connect(own_, to->ai_addr, to->ai_addrlen) == 0 &&
        send(own_, &own, kRankBytes, MSG_NOSIGNAL) == kRankBytes)
      return keep_alive(own_);
    error = errno;
    close(own_);
    own_ = -1;
  }
  throw std::runtime_error("rank " + std::to_string(rank) + " cannot connect to rank 0 at " +
                           place.substr(0, space) + ":" + place.substr(space + 1) + ": " +
                           std::strerror(error));
}

std::vector<int> Lifeline::broken() {
  if (listener_ < 0) return {};
  for (int accepted; (accepted = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC)) >= 0;) {
    keep_alive(accepted);
    connections_.push_back({accepted, ""});
  }
  std::vector<int> ranks;
  std::erase_if(connections_, [&](Connection& connection) {
    std::array<char, 16> bytes{};
    const ssize_t size = recv(connection.socket, bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (size > 0) connection.received.append(bytes.data(), static_cast<size_t>(size));
    if (size > 0 || (size < 0 && (errno == EAGAIN || errno == EINTR))) return false;
    close(connection.socket);
    // Fewer bytes: somebody else's connection.
    if (connection.received.size() == kRankBytes) {
      uint32_t rank = 0;
      std::memcpy(&rank, connection.received.data(), kRankBytes);
      ranks.push_back(static_cast<int>(ntohl(rank)));
    }
    return true;
  });
  return ranks;
}

}  // namespace pipewright::comms
