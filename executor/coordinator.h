#ifndef PIPEWRIGHT_EXECUTOR_COORDINATOR_H_
#define PIPEWRIGHT_EXECUTOR_COORDINATOR_H_

#include <chrono>
#include <string>
#include <vector>

#include "pipewright/comms/world.h"
#include "pipewright/executor/digest.h"

namespace pipewright::executor {

// Coordinates the ranks of one pipeline through the store. Before the first step they check that
// all run the same program with the same options; during a step, a rank that fails tells the
// others. Ranks are program ranks. For one thread at a time.
class Coordinator {
 public:
  // `ranks`: the world rank of each program rank. `world` must outlive this object.
  Coordinator(comms::World& world, const std::vector<int>& ranks, int rank,
              std::chrono::milliseconds timeout);

  // A prefix in the store that only this pipeline uses.
  const std::string& key() const { return key_; }

  // Collective. Throws std::invalid_argument on every rank if any rank passes a non-empty `error`
  // or a digest that differs from rank 0's. Throws std::runtime_error if a rank does not call it
  // before the timeout.
  void agree(const std::string& error, const std::vector<DigestPart>& digest) const;

  // Throws std::runtime_error if another rank has reported a failure.
  void check_peers() const;
  // Reports that the step failed on this rank. Returns the failure that was reported first, which
  // may be `message` itself. Also returns `message` if the store can no longer be reached.
  std::string report_failure(const std::string& message) const;
  // Blocks world rank 0, which hosts the store, until all ranks have called this, so that they can
  // read the first failure: for 3 seconds, or the timeout if that is shorter.
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
