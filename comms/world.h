#ifndef PIPEWRIGHT_COMMS_WORLD_H_
#define PIPEWRIGHT_COMMS_WORLD_H_

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

#include "pipewright/comms/process/environment.h"

namespace pipewright::comms {

class FailureDomain;
class Groups;
class Watcher;

using BackendPtr = c10::intrusive_ptr<c10d::Backend>;
using StorePtr = c10::intrusive_ptr<c10d::Store>;

inline constexpr std::chrono::milliseconds kDefaultTimeout{std::chrono::minutes(10)};

// Creates the backend of one group. Each member calls it with the same unique name and its own rank
// within the group. It may block until the other members do.
using MakeBackend = std::function<BackendPtr(const std::string& name, int rank, int size)>;

// One rank's view of a job: all of its ranks, and a factory for process groups over some of them.
// gloo.h, nccl.h and threads.h create one; a cluster with its own c10d backend passes its own
// MakeBackend.
//
//   World world = gloo_world(read_environment());
//   BackendPtr group = world.make_group("dp", std::vector{0, 1});  // on ranks 0 and 1
//
// For one thread at a time.
class World {
 public:
  // `watcher` is shared by the worlds of ranks that are threads of one process. If it is null, this
  // rank is a process, and rank 0 hosts the store. Throws if this rank cannot connect, or another
  // one has failed to.
  World(int rank, int size, StorePtr store, MakeBackend make_backend,
        std::chrono::milliseconds timeout = kDefaultTimeout,
        std::shared_ptr<Watcher> watcher = nullptr);

  int rank() const { return rank_; }
  int size() const { return size_; }
  const StorePtr& store() const { return store_; }
  // The timeout of operations that do not set their own.
  std::chrono::milliseconds timeout() const { return timeout_; }

  // Whether a rank of the world has failed, as far as this process knows, and whether it was a
  // hang. A step then ends on every rank, with the same first cause (executor.h). A trainer calls
  // fail() for an error outside of a step, which ends the other ranks' steps too:
  //
  //   } catch (const std::exception& error) {
  //     const std::string own = world.fail(error.what());
  //     throw std::runtime_error(world.explain(own));
  bool failed() const;
  bool hung() const;
  // Publishes "rank R: message" as the cause, unless another failure was first, and aborts the
  // groups of this process. Returns this rank's own text. Does not throw.
  std::string fail(const std::string& message);
  // After a failure: the first cause, followed by the ranks that do not answer and, after a hang,
  // by who causes it. Waits for all ranks' answers, but at most 1.5 s. `own`, what fail() has
  // returned, comes last, unless it is the first cause or only repeats it.
  std::string explain(const std::string& own = "");

  // What stands behind these four, for our own files (failure/failure_domain.h).
  FailureDomain& failures() const { return *failures_; }

  // The groups of this rank. For any thread, also when this world is gone.
  const std::shared_ptr<Groups>& groups() const { return groups_; }

  // Creates a group of `ranks`, which must contain this rank; a member's rank within the group is
  // its position in `ranks`. May block, and is collective over the members: they must create their
  // groups in an order that cannot deadlock, for example the same order. Throws
  // std::invalid_argument if a rank is out of range or appears twice, or this rank is missing.
  //
  // The group is a handle (group.h): a failure of the world aborts it, reset() connects it again,
  // and when its last user drops it after a clean end, it shuts down instead of aborting.
  BackendPtr make_group(const std::string& name, std::span<const int> ranks);

  // Collective over all ranks of the world, after a failure: connects all groups that still exist
  // again, in the order in which they were made. The members of a group must all have kept it.
  // Returns the smallest `value` of any rank. Throws std::runtime_error if a rank does not call it
  // within the timeout; it can then be called again.
  int64_t reset(int64_t value = 0);

  // The same world with every backend passed through `wrap`, for example to record or delay its
  // calls. The members of a group must all create it from a wrapped world, or none of them.
  World wrapped(std::function<BackendPtr(BackendPtr)> wrap) const;

  // Returns a name that no other call on this rank returns, for keys in the store. Ranks that call
  // this in the same order get the same names.
  std::string unique_name(const std::string& name);

 private:
  const int rank_;
  const int size_;
  const StorePtr store_;
  MakeBackend make_backend_;
  const std::chrono::milliseconds timeout_;
  // Shared with wrapped().
  std::shared_ptr<Groups> groups_;
  std::shared_ptr<FailureDomain> failures_;
  std::shared_ptr<std::map<std::string, int>> times_used_;  // by name
};

// Connects to the job's TCPStore, which is hosted by rank 0, or by torchrun's agent if it has a
// store. Keys are prefixed by the number of restarts, so that a restarted job does not read old
// ones. Blocks; throws if it cannot connect within `timeout`, which is also that of each request
// (bounded_store.h). Rank 0 throws std::invalid_argument within seconds if the master address is
// not its own (world.h). In a world of one process, returns a store in memory.
StorePtr connect_store(const Environment& environment,
                       std::chrono::milliseconds timeout = kDefaultTimeout);

}  // namespace pipewright::comms

#endif  // PIPEWRIGHT_COMMS_WORLD_H_
