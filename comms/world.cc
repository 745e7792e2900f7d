#include "pipewright/comms/world.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <stdexcept>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "pipewright/comms/failure/failure_domain.h"
#include "pipewright/comms/group.h"
#include "pipewright/comms/process/addresses.h"
#include "pipewright/comms/process/environment.h"
#include "pipewright/comms/torch_gaps/bounded_store.h"

namespace pipewright::comms {

namespace {

using Clock = std::chrono::steady_clock;

constexpr const char* kLoopback = "127.0.0.1";
// In a cluster of containers it takes a while until the name or the service of a new one works.
constexpr std::chrono::seconds kPatience{4};
constexpr std::chrono::milliseconds kPause{200};

bool listens_here(uint16_t port) {
  const int probe = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  // A listener whose queue is full answers nothing.
  const timeval limit{.tv_sec = 0, .tv_usec = 100'000};
  setsockopt(probe, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const bool connected =
      connect(probe, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
  close(probe);
  return connected;
}

std::string own_addresses() {
  std::string all;
  for (const Interface& one : interfaces()) all += (all.empty() ? "" : ", ") + one.address;
  return all;
}

// The address at which all ranks look for the store that rank 0 hosts. If it is not rank 0's, the
// others would try to connect until the time limit.
class StoreAddress {
 public:
  // `options` are those of this rank's connection.
  StoreAddress(const Environment& environment, const c10d::TCPStoreOptions& options);

  // What keys in the store begin with, so that a restarted job does not read old ones.
  std::string prefix() const;

  // Rank 0, with the store that it hosts: throws std::invalid_argument that names the variable,
  // what it means and what this host is, after telling those who can be told: ranks that reach the
  // store all the same, and those on this host.
  void check(const c10::intrusive_ptr<c10d::Store>& store) const;

  // Other ranks, while they cannot connect: throws std::runtime_error if rank 0, on the same host,
  // has found that the address is wrong.
  void throw_if_wrong();

 private:
  std::string difference(c10d::Store& store) const;
  std::string key() const;

  const Environment environment_;
  c10d::TCPStoreOptions options_;
  bool may_listen_here_;
};

StoreAddress::StoreAddress(const Environment& environment, const c10d::TCPStoreOptions& options)
    : environment_(environment),
      options_(options),
      may_listen_here_(environment.rank > 0 && !environment.agent_has_store) {
  options_.isServer = false;
}

std::string StoreAddress::prefix() const {
  return "pipewright/attempt" + std::to_string(environment_.restarts);
}

// In the store on this host, which may be that of another job with the same port.
std::string StoreAddress::key() const { return "wrong_address/" + environment_.master_addr; }

// An address of this host is right. So is any other by which this process reaches its own store,
// as that of a service in front of a container.
std::string StoreAddress::difference(c10d::Store& store) const {
  const std::string& host = environment_.master_addr;
  const Clock::time_point deadline = Clock::now() + kPatience;
  std::string found;
  bool resolved = false;
  while (!resolved && Clock::now() < deadline) {
    try {
      const Addresses addresses = resolve(host, std::to_string(options_.port), SOCK_STREAM);
      found.clear();
      for (const addrinfo* one = addresses.get(); one; one = one->ai_next) {
        if (is_own(*one)) return "";
        found += (found.empty() ? "" : ", ") + numeric(one->ai_addr, one->ai_addrlen);
      }
      resolved = true;
    } catch (const std::runtime_error& error) {
      found = error.what();
      std::this_thread::sleep_for(kPause);
    }
  }
  if (resolved) {
    const std::string mark = "here/" + host_name() + "/" + std::to_string(getpid());
    store.set(mark, "");
    c10d::TCPStoreOptions options = options_;
    options.timeout = kPatience;
    try {
      BoundedStore there(prefix(), host, "rank 0", options);
      if (there.check({mark})) return "";
    } catch (const std::runtime_error&) {  // then it is not this process
    }
  }
  const std::string& variable = environment_.master_variable;
  return "environment variable " + variable + " is invalid: expected the host of rank 0, " +
         host_name() + " (" + own_addresses() + "), got `" + host + "` (" + found + ")" +
         (variable == "MASTER_ADDR" ? "" : "; MASTER_ADDR overrides it");
}

void StoreAddress::check(const c10::intrusive_ptr<c10d::Store>& store) const {
  const std::string wrong = difference(*store);
  if (wrong.empty()) return;
  const auto failures = FailureDomain::owned(std::make_shared<FailureDomain>(
      0, environment_.world_size, store, std::make_shared<Watcher>(), /*hosts_store=*/true, [] {}));
  store->set(key(), failures->fail(wrong));
  throw std::invalid_argument(wrong);
}

void StoreAddress::throw_if_wrong() {
  if (!may_listen_here_ || !listens_here(options_.port)) return;
  std::string wrong;
  try {
    c10d::TCPStoreOptions options = options_;
    options.timeout = std::chrono::seconds(1);
    BoundedStore here(prefix(), kLoopback, "rank 0", options);
    if (here.check({key()})) {
      wrong = here.get_to_str(key());
      here.add("domain/left", 1);
    }
  } catch (const std::runtime_error&) {
    may_listen_here_ = false;  // something else does
  }
  if (!wrong.empty()) throw std::runtime_error(wrong);
}

// Connects processes whose store is of connect_store(), so that all of them can reach its host.
std::shared_ptr<Lifeline> make_lifeline(int rank, int size, const StorePtr& store,
                                        std::chrono::milliseconds timeout,
                                        FailureDomain& failures) {
  const auto* connection = dynamic_cast<const BoundedStore*>(store.get());
  if (size == 1 || !connection) return nullptr;
  if (rank > 0) {
    failures.wait_for(Lifeline::kKey, timeout,
                      "rank 0 did not connect within " + std::to_string(timeout.count()) + " ms");
  }
  return std::make_shared<Lifeline>(rank, *store, connection->host(), timeout);
}

// Whether the store ends with this rank, which is a process.
bool hosts(int rank, const StorePtr& store) {
  const auto* connection = dynamic_cast<const BoundedStore*>(store.get());
  return connection ? connection->is_server() : rank == 0;
}

}  // namespace

World::World(int rank, int size, StorePtr store, MakeBackend make_backend,
             std::chrono::milliseconds timeout, std::shared_ptr<Watcher> watcher)
    : rank_(rank),
      size_(size),
      store_(std::move(store)),
      make_backend_(std::move(make_backend)),
      timeout_(timeout),
      groups_(std::make_shared<Groups>()),
      failures_(FailureDomain::owned(std::make_shared<FailureDomain>(
          rank_, size_, store_, watcher ? watcher : std::make_shared<Watcher>(),
          /*hosts_store=*/!watcher && hosts(rank_, store_),
          [groups = groups_] { groups->abort(); }))),
      times_used_(std::make_shared<std::map<std::string, int>>()) {
  failures_->set_check([groups = groups_](c10d::Store& at) { return groups->difference(at); });
  if (watcher) return;
  failures_->connect(
      [&] { failures_->set_lifeline(make_lifeline(rank_, size_, store_, timeout_, *failures_)); });
}

BackendPtr World::make_group(const std::string& name, std::span<const int> ranks) {
  std::string members;
  for (const int rank : ranks) {
    members += (members.empty() ? "" : ",") + std::to_string(rank);
    if (rank < 0 || rank >= size_) {
      throw std::invalid_argument("group `" + name + "`: expected ranks from 0 to " +
                                  std::to_string(size_ - 1) + ", got " + std::to_string(rank));
    }
    if (std::ranges::count(ranks, rank) != 1) {
      throw std::invalid_argument("group `" + name + "`: rank " + std::to_string(rank) +
                                  " appears twice");
    }
  }
  const auto self = std::ranges::find(ranks, rank_);
  if (self == ranks.end()) {
    throw std::invalid_argument("group `" + name + "`: expected this rank, " +
                                std::to_string(rank_) + ", among its members, got ranks " +
                                members);
  }
  const auto group = c10::make_intrusive<Group>(
      unique_name(name + "[" + members + "]"), static_cast<int>(self - ranks.begin()),
      std::vector<int>(ranks.begin(), ranks.end()), make_backend_, timeout_,
      failures_->weak_from_this());
  groups_->add(group);
  // Those that existed when the world failed have been aborted.
  if (failures_->failed()) group->abort();
  return group;
}

int64_t World::reset(int64_t value) {
  const int64_t least = failures_->reset(value, timeout_);
  groups_->connect_again(failures_->generation());
  return least;
}

World World::wrapped(std::function<BackendPtr(BackendPtr)> wrap) const {
  const MakeBackend make = [inner = make_backend_, wrap = std::move(wrap)](const std::string& name,
                                                                           int rank, int size) {
    return wrap(inner(name, rank, size));
  };
  World world = *this;
  world.make_backend_ = make;
  return world;
}

bool World::failed() const { return failures_->failed(); }
bool World::hung() const { return failures_->hung(); }
std::string World::fail(const std::string& message) { return failures_->fail(message); }
std::string World::explain(const std::string& own) { return failures_->explain(own); }

std::string World::unique_name(const std::string& name) {
  return name + "#" + std::to_string((*times_used_)[name]++);
}

StorePtr connect_store(const Environment& environment, std::chrono::milliseconds timeout) {
  if (environment.world_size == 1) return c10::make_intrusive<c10d::HashStore>();
  c10d::TCPStoreOptions options;
  options.port = environment.master_port;
  options.isServer = environment.rank == 0 && !environment.agent_has_store;
  // Rank 0 need not wait for the others: ranks that start later connect to the running server.
  options.waitWorkers = false;
  options.timeout = timeout;
  StoreAddress address(environment, options);
  auto store =
      c10::make_intrusive<BoundedStore>(address.prefix(), environment.master_addr,
                                        environment.agent_has_store ? "torchrun's agent" : "rank 0",
                                        options, [&] { address.throw_if_wrong(); });
  if (options.isServer) address.check(store);
  return store;
}

}  // namespace pipewright::comms
