// torch's TCPStore hides its socket, but honours a receive timeout on it: recv() then fails with
// EAGAIN, which torch reports as a DistNetworkError. So this file finds the socket, as one that is
// connected to the server's port and was not before the store connected, and sets the timeout.
#include "pipewright/comms/torch_gaps/bounded_store.h"

#include <sys/socket.h>
#include <sys/time.h>

#include <algorithm>
#include <future>
#include <stdexcept>
#include <thread>

#include "pipewright/comms/process/sockets.h"

namespace pipewright::comms {
namespace {

void set_timeout(int socket, std::chrono::milliseconds timeout) {
  timeval limit{};
  limit.tv_sec = timeout.count() / 1000;
  limit.tv_usec = timeout.count() % 1000 * 1000;
  setsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  setsockopt(socket, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
}

std::string name_of(const std::string& host, uint16_t port) {
  return "the store at " + host + ":" + std::to_string(port);
}

}  // namespace

BoundedStore::BoundedStore(const std::string& prefix, const std::string& host,
                           const std::string& owner, const c10d::TCPStoreOptions& options,
                           const std::function<void()>& meanwhile)
    : BoundedStore(prefix, host, owner, options,
                   connect(host, options.isServer, options, meanwhile),
                   std::make_shared<std::atomic<int64_t>>(options.timeout.count())) {
  if (options.isServer) server_.emplace(static_cast<c10d::TCPStore&>(*store_).getPort());
}

BoundedStore::BoundedStore(const std::string& prefix, const std::string& host,
                           const std::string& owner, const c10d::TCPStoreOptions& options,
                           Connection connection, Limit limit_ms)
    : PrefixStore(prefix, connection.store),
      host_(host),
      owner_(owner),
      options_(options),
      sockets_(std::move(connection.sockets)),
      limit_ms_(std::move(limit_ms)) {}

// Connecting ends with a first request, which torch does not limit either. So a thread connects,
// and is left behind if it does not end.
BoundedStore::Connection BoundedStore::connect(const std::string& host, bool over_loopback,
                                               const c10d::TCPStoreOptions& options,
                                               const std::function<void()>& meanwhile) {
  const std::vector<int> before = sockets_to(options.port);
  const auto task = std::make_shared<std::packaged_task<c10::intrusive_ptr<c10d::TCPStore>()>>(
      [to = over_loopback ? "127.0.0.1" : host, options] {
        return c10::make_intrusive<c10d::TCPStore>(to, options);
      });
  auto connected = task->get_future();
  std::thread([task] { (*task)(); }).detach();
  // torch itself gives up the attempt to connect after the timeout.
  const auto deadline =
      std::chrono::steady_clock::now() + options.timeout + std::chrono::seconds(1);
  while (true) {
    const auto now = std::chrono::steady_clock::now();
    const auto pause =
        std::min<std::chrono::steady_clock::duration>(deadline - now, std::chrono::seconds(1));
    if (connected.wait_for(pause) == std::future_status::ready) break;
    if (now + pause >= deadline) {
      throw std::runtime_error(name_of(host, options.port) + " did not answer within " +
                               std::to_string(options.timeout.count()) + " ms");
    }
    if (meanwhile) meanwhile();
  }
  Connection connection;
  try {
    connection.store = connected.get();
  } catch (const c10::Error& error) {
    throw std::runtime_error(name_of(host, options.port) + ": " + error.what_without_backtrace());
  }
  for (const int socket : sockets_to(options.port)) {
    if (std::ranges::find(before, socket) != before.end()) continue;
    keep_alive(socket);
    connection.sockets.push_back(socket);
  }
  return connection;
}

void BoundedStore::close() {
  for (const int socket : sockets_) shutdown(socket, SHUT_RDWR);
}

c10::intrusive_ptr<c10d::Store> BoundedStore::clone() {
  c10d::TCPStoreOptions client = options_;
  client.isServer = false;
  // As a server's process, a clone of this one connects as this does.
  return c10::intrusive_ptr<BoundedStore>::unsafe_steal_from_new(new BoundedStore(
      prefix_, host_, owner_, options_, connect(host_, is_server(), client), limit_ms_));
}

template <typename Request>
auto BoundedStore::bounded(const Request& request) {
  // What is waited for in wait() is an event of the socket, which has wait()'s own timeout.
  if (const int64_t limit = *limit_ms_; socket_limit_ms_.exchange(limit) != limit) {
    for (const int socket : sockets_) set_timeout(socket, std::chrono::milliseconds(limit));
  }
  try {
    return request();
  } catch (const c10::DistNetworkError& error) {
    close();
    throw std::runtime_error(name_of(host_, options_.port) +
                             " does not answer: " + error.what_without_backtrace());
  }
}

void BoundedStore::set(const std::string& key, const Bytes& value) {
  bounded([&] { PrefixStore::set(key, value); });
}

BoundedStore::Bytes BoundedStore::compareSet(const std::string& key, const Bytes& expected,
                                             const Bytes& value) {
  return bounded([&] { return PrefixStore::compareSet(key, expected, value); });
}

BoundedStore::Bytes BoundedStore::get(const std::string& key) {
  return bounded([&] { return PrefixStore::get(key); });
}

int64_t BoundedStore::add(const std::string& key, int64_t value) {
  return bounded([&] { return PrefixStore::add(key, value); });
}

bool BoundedStore::deleteKey(const std::string& key) {
  return bounded([&] { return PrefixStore::deleteKey(key); });
}

bool BoundedStore::check(const Keys& keys) {
  return bounded([&] { return PrefixStore::check(keys); });
}

int64_t BoundedStore::getNumKeys() {
  return bounded([&] { return PrefixStore::getNumKeys(); });
}

void BoundedStore::wait(const Keys& keys) {
  bounded([&] { PrefixStore::wait(keys); });
}

void BoundedStore::wait(const Keys& keys, const std::chrono::milliseconds& timeout) {
  bounded([&] { PrefixStore::wait(keys, timeout); });
}

}  // namespace pipewright::comms
