#include "pipewright/comms/failure/lifeline.h"

#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "pipewright/comms/process/addresses.h"
#include "pipewright/comms/process/private_sockets.h"
#include "pipewright/comms/process/sockets.h"

namespace pipewright::comms {
namespace {

// What a rank says first, as big-endian numbers.
struct Hello {
  uint32_t rank, attempt;
};

Hello hello_of(const std::string& received) {
  Hello hello{};
  std::memcpy(&hello, received.data(), sizeof hello);
  return {ntohl(hello.rank), ntohl(hello.attempt)};
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
    const std::string own = numeric(reinterpret_cast<sockaddr*>(&from), size);
    return own == numeric(to->ai_addr, to->ai_addrlen) || own.starts_with("127.") ? host : own;
  }
  return host;
}

std::string why() { return std::strerror(errno); }

}  // namespace

Lifeline::Socket::Socket(int descriptor) : descriptor_(descriptor) {
  if (is_open()) make_private(descriptor);
}

Lifeline::Socket::~Socket() {
  if (is_open()) close_private(descriptor_);
}

Lifeline::Socket::Socket(Socket&& other) noexcept
    : descriptor_(std::exchange(other.descriptor_, -1)) {}

Lifeline::Socket& Lifeline::Socket::operator=(Socket&& other) noexcept {
  std::swap(descriptor_, other.descriptor_);
  return *this;
}

Lifeline::Lifeline(int rank, c10d::Store& store, const std::string& store_host,
                   std::chrono::milliseconds timeout)
    : rank_(rank) {
  if (rank == 0) {
    listener_ = listen_on_free_port();
    store.set(kKey, own_name(store_host) + " " + std::to_string(local_port(listener_.get())));
    return;
  }
  store.wait({kKey}, timeout);
  const std::string place = store.get_to_str(kKey);
  const size_t space = place.find(' ');
  host_ = place.substr(0, space);
  port_ = place.substr(space + 1);
  connect(0, timeout);
}

Lifeline::~Lifeline() { end(); }

void Lifeline::end() {
  const char goodbye = 0;
  if (own_.is_open()) send(own_.get(), &goodbye, 1, MSG_NOSIGNAL);
  own_ = Socket();
}

// On all addresses of this host.
Lifeline::Socket Lifeline::listen_on_free_port() {
  Socket listener;
  const auto bind_to = [&](int family, auto address) {
    listener = Socket(socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    const int v6_only = 0;
    if (family == AF_INET6)
      setsockopt(listener.get(), IPPROTO_IPV6, IPV6_V6ONLY, &v6_only, sizeof v6_only);
    return bind(listener.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
  };
  sockaddr_in6 any6{};
  any6.sin6_family = AF_INET6;
  any6.sin6_addr = in6addr_any;
  sockaddr_in any4{};
  any4.sin_family = AF_INET;
  any4.sin_addr.s_addr = htonl(INADDR_ANY);
  if ((!bind_to(AF_INET6, any6) && !bind_to(AF_INET, any4)) ||
      listen(listener.get(), SOMAXCONN) != 0)
    throw std::runtime_error("rank 0 cannot listen: " + why());
  return listener;
}

void Lifeline::connect(int attempt, std::chrono::milliseconds timeout) {
  const Addresses addresses = resolve(host_, port_, SOCK_STREAM);
  const Hello hello{htonl(static_cast<uint32_t>(rank_)), htonl(static_cast<uint32_t>(attempt))};
  std::string error;
  for (const addrinfo* to = addresses.get(); to; to = to->ai_next) {
    Socket made(socket(to->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (!made.is_open()) continue;
    timeval limit{};
    limit.tv_sec = timeout.count() / 1000;
    limit.tv_usec = timeout.count() % 1000 * 1000;
    setsockopt(made.get(), SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
    if (::connect(made.get(), to->ai_addr, to->ai_addrlen) == 0 &&
        send(made.get(), &hello, sizeof hello, MSG_NOSIGNAL) == sizeof hello) {
      keep_alive(made.get());
      end();
      own_ = std::move(made);
      return;
    }
    error = why();
  }
  throw std::runtime_error("rank " + std::to_string(rank_) + " cannot connect to rank 0 at " +
                           host_ + ":" + port_ + ": " + error);
}

// Closes the socket if the other end has closed it.
void Lifeline::Connection::read() {
  std::array<char, 16> bytes{};
  const ssize_t size = recv(socket.get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
  if (size > 0)
    received.append(bytes.data(), static_cast<size_t>(size));
  else if (size == 0 || (errno != EAGAIN && errno != EINTR))
    socket = Socket();
}

void Lifeline::read_connections() {
  for (int accepted; (accepted = accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC)) >= 0;) {
    keep_alive(accepted);
    strangers_.push_back({Socket(accepted), ""});
  }
  for (auto& [rank, connection] : connections_) {
    if (!connection.socket.is_open()) continue;
    connection.read();
    const bool has_said_goodbye = connection.received.size() > sizeof(Hello);
    if (!connection.socket.is_open() && !has_said_goodbye) broken_.push_back(rank);
  }
  std::erase_if(strangers_, [&](Connection& connection) {
    connection.read();
    if (connection.received.size() < sizeof(Hello)) return !connection.socket.is_open();
    const auto rank = static_cast<int>(hello_of(connection.received).rank);
    connections_[rank] = std::move(connection);
    std::erase(broken_, rank);
    return true;
  });
}

bool Lifeline::has_connected(int rank, int attempt) {
  const std::lock_guard lock(mutex_);
  read_connections();
  const auto found = connections_.find(rank);
  return found != connections_.end() &&
         hello_of(found->second.received).attempt == static_cast<uint32_t>(attempt);
}

std::vector<int> Lifeline::broken() {
  const std::lock_guard lock(mutex_);
  if (listener_.is_open()) read_connections();
  return broken_;
}

}  // namespace pipewright::comms
