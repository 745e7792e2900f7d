#include "pipewright/comms/threads/threads.h"

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <utility>

#include "pipewright/comms/failure/failure_domain.h"
#include "pipewright/comms/threads/mailboxes.h"
#include "pipewright/comms/threads/tensor_operation.h"
#include "pipewright/comms/threads/thread_backend.h"

namespace pipewright::comms {
namespace {

// The rendezvous of a group's members: the first to join creates their mailboxes, the last removes
// the entry.
class Rendezvous {
 public:
  std::shared_ptr<Mailboxes> join(const std::string& name, int size, ir::ChannelCapacity capacity) {
    const std::lock_guard lock(mutex_);
    auto& [mailboxes, joined] = groups_[name];
    if (!mailboxes)
      mailboxes = std::make_shared<Mailboxes>(name, size, capacity, make_tensor_carrier());
    const std::shared_ptr<Mailboxes> found = mailboxes;
    if (++joined == size) groups_.erase(name);
    return found;
  }

 private:
  std::mutex mutex_;
  std::map<std::string, std::pair<std::shared_ptr<Mailboxes>, int>> groups_;
};

}  // namespace

bool is_thread_group(const c10d::Backend& group) {
  return group.getBackendName() == kThreadBackend;
}

std::vector<World> thread_worlds(int size, const ThreadOptions& options) {
  const StorePtr store =
      options.store ? options.store : StorePtr(c10::make_intrusive<c10d::HashStore>());
  const auto rendezvous = std::make_shared<Rendezvous>();
  const MakeBackend make = [=](const std::string& name, int rank, int group_size) -> BackendPtr {
    return c10::make_intrusive<ThreadBackend>(rendezvous->join(name, group_size, options.capacity),
                                              rank, options);
  };
  const auto watcher = std::make_shared<Watcher>();
  std::vector<World> worlds;
  for (int rank = 0; rank < size; ++rank)
    worlds.emplace_back(rank, size, store, make, options.timeout, watcher);
  return worlds;
}

}  // namespace pipewright::comms
