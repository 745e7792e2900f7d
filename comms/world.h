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

#include "pipewright/comms/environment.h"

// All ranks of a job, and how groups of them are made. gloo.h, nccl.h and thread_backend.h give
// one; a cluster with a backend of its own brings its MakeBackend.

namespace pipewright::comms {

using BackendPtr = c10::intrusive_ptr<c10d::Backend>;
using StorePtr = c10::intrusive_ptr<c10d::Store>;

inline constexpr std::chrono::milliseconds kDefaultTimeout{std::chrono::minutes(10)};

// Makes the backend of one group: called by each member, with the same unique name and its own
// index among the members. It may wait for the other members.
using MakeBackend = std::function<BackendPtr(const std::string& name, int rank, int size)>;

// Of one rank; its methods are for one thread at a time.
class World {
 public:
  World(int rank, int size, StorePtr store, MakeBackend make_backend,
        std::chrono::milliseconds timeout = kDefaultTimeout);

  int rank() const { return rank_; }
  int size() const { return size_; }
  const StorePtr& store() const { return store_; }
  // Of an operation that brings none of its own.
  std::chrono::milliseconds timeout() const { return timeout_; }

  // A group of some ranks, in the order of `ranks`, this one among them. Collective over them: all
  // must make groups in an order that cannot deadlock, for example the same. Throws
  // std::invalid_argument for ranks that are not there, twice, or without this one.
  BackendPtr make_group(const std::string& name, std::span<const int> ranks);

  // The same world, each of its backends passed through `wrap`: to record or delay what they do
  // (recording_backend.h). The members of a group all make it on the one or all on the other.
  World wrapped(std::function<BackendPtr(BackendPtr)> wrap) const;

  // A name that no other call of this rank gets, the same on all ranks that ask in the same order:
  // for keys in the store.
  std::string unique_name(const std::string& name);

 private:
  const int rank_;
  const int size_;
  const StorePtr store_;
  const MakeBackend make_backend_;
  const std::chrono::milliseconds timeout_;
  std::shared_ptr<std::map<std::string, int>> times_used_;  // by name; shared with wrapped()
};

// Rank 0 serves, the others connect; under torchrun's agent all connect. Throws after `timeout`.
StorePtr connect_store(const Environment& environment,
                       std::chrono::milliseconds timeout = kDefaultTimeout);

}  // namespace pipewright::comms

#endif  // PIPEWRIGHT_COMMS_WORLD_H_
