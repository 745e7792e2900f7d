#include "pipewright/comms/world.h"

#include <algorithm>
#include <stdexcept>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "pipewright/comms/group.h"
#include "pipewright/comms/store_address.h"
#include "pipewright/comms/torch_gaps/bounded_store.h"

namespace pipewright::comms {
namespace {

// Of processes with a store of connect_store(), whose host all of them can reach.
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
