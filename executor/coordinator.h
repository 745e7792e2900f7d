#ifndef PIPEWRIGHT_EXECUTOR_COORDINATOR_H_
#define PIPEWRIGHT_EXECUTOR_COORDINATOR_H_

#include <chrono>
#include <string>
#include <vector>

#include "pipewright/comms/store_rounds.h"
#include "pipewright/comms/world.h"
#include "pipewright/executor/program/program.h"

namespace pipewright::executor {

// Coordinates the ranks of one pipeline through the store. Before the first step they check that
// all run the same program with the same options; before each step, that no rank has a wrong batch.
// What happens when a rank fails is decided by the world (comms/failure/failure_domain.h). For one
// thread at a time.
class Coordinator {
 public:
  // `id` is the same on all ranks that create their executors in the same order. `ranks`: the world
  // rank of each program rank. `groups`: the data-parallel groups of this rank's stages, and then
  // that of the ranks with the same batch; a wrong batch ends the step of all pipelines that they
  // connect. `world` must outlive this object.
  Coordinator(comms::World& world, const std::string& id, const std::vector<int>& ranks, int rank,
              const std::vector<c10d::Backend*>& groups, std::chrono::milliseconds timeout);

  // Applies to later calls.
  void set_timeout(std::chrono::milliseconds timeout) { timeout_ = timeout; }

  // A prefix in the store that only this pipeline uses.
  const std::string& key() const { return key_; }

  // Collective. Throws std::invalid_argument on every rank if any rank passes a non-empty `error`
  // or a digest that differs from rank 0's, or called refuse(). Throws std::runtime_error if a rank
  // does not call it before the timeout.
  void agree(const std::string& error, const std::vector<DigestPart>& digest) const;
  // Instead of agree(), on a rank whose arguments do not even name the ranks of its pipeline. Makes
  // every executor with this id fail.
  static void refuse(comms::World& world, const std::string& id, const std::string& error);

  // Collective, before the first communication of a step: returns the problem of a rank, the same
  // on all ranks, or an empty string if no rank brings one. Throws std::runtime_error if another
  // rank fails or does not begin the step before the timeout.
  std::string begin_step(const std::string& problem);
  // Collective, likewise: whether any rank passes true.
  bool any(bool flag);
  // Collective over the world, after a step: either returns on all ranks, or throws
  // std::runtime_error on all.
  void confirm_step();

 private:
  std::string vote(std::string proposal);
  void wait_for_digest(const std::string& key, const std::string& who) const;

  comms::World& world_;
  const int num_ranks_;
  const int rank_;
  const std::string key_;
  const std::string refusal_;  // the key that refuse() sets
  std::chrono::milliseconds timeout_;
  std::vector<comms::Vote> votes_;  // of the pipeline, then of each group
  comms::Vote confirmations_;       // of the world
};

}  // namespace pipewright::executor

#endif  // PIPEWRIGHT_EXECUTOR_COORDINATOR_H_
