#include "pipewright/comms/process/private_sockets.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sys/socket.h>
#include <unistd.h>

#include <filesystem>
#include <mutex>
#include <set>
#include <string>
#include <system_error>

namespace pipewright::comms {
namespace {

struct Private {
  std::mutex mutex;  // held during fork(), so that no socket is closed or opened meanwhile
  std::set<int> sockets;
  std::multiset<uint16_t> ports;  // of servers
};

// 0 if it is not a socket of TCP.
uint16_t local_port(int descriptor) {
  sockaddr_storage own{};
  socklen_t size = sizeof own;
  if (getsockname(descriptor, reinterpret_cast<sockaddr*>(&own), &size) != 0) return 0;
  if (own.ss_family == AF_INET) return ntohs(reinterpret_cast<const sockaddr_in&>(own).sin_port);
  if (own.ss_family == AF_INET6) return ntohs(reinterpret_cast<const sockaddr_in6&>(own).sin6_port);
  return 0;
}

// In a child, which has this thread only.
void leave_to_parent(Private& all) {
  if (!all.ports.empty()) {
    std::error_code none;  // without /proc the child keeps them
    for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd", none)) {
      const int descriptor = std::stoi(entry.path().filename());
      if (all.ports.contains(local_port(descriptor))) all.sockets.insert(descriptor);
    }
  }
  const int null = open("/dev/null", O_RDWR | O_CLOEXEC);
  for (const int socket : all.sockets) dup3(null, socket, O_CLOEXEC);
  close(null);
  all.sockets.clear();
  all.ports.clear();
}

Private& all_private() {
  static Private& all = *new Private;
  static const int registered = pthread_atfork([] { all.mutex.lock(); }, [] { all.mutex.unlock(); },
                                               [] {
                                                 leave_to_parent(all);
                                                 all.mutex.unlock();
                                               });
  static_cast<void>(registered);
  return all;
}

}  // namespace

void make_private(int socket) {
  Private& all = all_private();
  const std::lock_guard lock(all.mutex);
  all.sockets.insert(socket);
}

void close_private(int socket) {
  Private& all = all_private();
  const std::lock_guard lock(all.mutex);
  all.sockets.erase(socket);
  close(socket);
}

PrivateServer::PrivateServer(uint16_t port) : port_(port) {
  Private& all = all_private();
  const std::lock_guard lock(all.mutex);
  all.ports.insert(port);
}

PrivateServer::~PrivateServer() {
  Private& all = all_private();
  const std::lock_guard lock(all.mutex);
  // In a child that was forked meanwhile it is no longer there.
  if (const auto one = all.ports.find(port_); one != all.ports.end()) all.ports.erase(one);
}

}  // namespace pipewright::comms
