#include "pipewright/comms/process/private_sockets.h"

#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

#include <filesystem>
#include <mutex>
#include <set>

#include "pipewright/comms/process/sockets.h"

namespace pipewright::comms {
namespace {

struct Private {
  std::mutex mutex;  // held during fork(), so that no socket is closed or opened meanwhile
  std::set<int> sockets;
  std::multiset<uint16_t> ports;  // of servers
};

// In a child, which has this thread only.
void leave_to_parent(Private& all) {
  try {
    for (const uint16_t port : all.ports) {
      for (const int socket : sockets_from(port)) all.sockets.insert(socket);
    }
  } catch (const std::filesystem::filesystem_error&) {  // the child keeps them
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
