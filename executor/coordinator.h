#ifndef PIPEWRIGHT_EXECUTOR_COORDINATOR_H_
#define PIPEWRIGHT_EXECUTOR_COORDINATOR_H_

#include <chrono>
#include <string>
#include <vector>

#include "pipewright/comms/world.h"
#include "pipewright/executor/digest.h"

namespace pipewright::executor {

// What the ranks of one pipeline tell each other through the store: before the first step that they
// agree, and during a step that it has failed. Ranks are those of the program. For one thread at a
// time.
class Coordinator {
 public:
  // `ranks`: the world rank of each program rank. `world` must outlive this object.
  Coordinator(comms::World& world, const std::vector<int>& ranks, int rank,
              std::chrono::milliseconds timeout);

  // A prefix in the store that only this pipeline uses.
  const std::string& key() const { return key_; }

  // Collective. Throws std::invalid_argument on every rank if one has an `error` (not empty), or a
  // digest that differs from rank 0's; std::runtime_error if a rank does not call it in time.
  void agree(const std::string& error, const std::vector<DigestPart>& digest) const;

  // Throws std::runtime_error if another rank has reported a failure.
  void check_peers() const;
  // Reports that the step failed here. Returns the first report of all ranks, which may be
  // `message` itself. `message` is returned too if the store is gone: then nothing else is known.
  std::string report_failure(const std::string& message) const;
  // Waits on world rank 0, which serves the store, until all ranks have come here, but not for
  // long.
  void linger_after_failure() const { linger("/failed"); }

 private:
  void linger(const std::string& counter) const;

  comms::World& world_;
  const int num_ranks_;
  const int rank_;
  const std::string key_;
  const std::chrono::milliseconds timeout_;
};

}  // namespace pipewright::executor

#endif  // PIPEWRIGHT_EXECUTOR_COORDINATOR_H_
