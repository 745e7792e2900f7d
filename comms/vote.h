#ifndef PIPEWRIGHT_COMMS_VOTE_H_
#define PIPEWRIGHT_COMMS_VOTE_H_

#include <chrono>
#include <string>

#include "pipewright/comms/world.h"

namespace pipewright::comms {

// Votes of a fixed set of ranks through the store, one after the other: each rank brings a problem
// or none, and all leave with the same one. No tensor and no device is involved, so a vote may come
// before the first message of a step. For one thread at a time.
//
//   Vote vote(world, "executor.0.1", 2);
//   const std::string problem = vote.agree(wrong_batch ? "input 0: ..." : "", timeout);
class Vote {
 public:
  // `world` must outlive the object. `name` is a prefix in the store that only these `size` ranks
  // use, for this purpose.
  Vote(World& world, std::string name, int size);

  // Collective. Returns the problem of the first rank that brought one, or an empty string. Throws
  // std::runtime_error if the world fails, or if not all ranks vote within `timeout`. Either all
  // ranks return, or none does. After a failure ranks count their votes from the beginning.
  std::string agree(const std::string& problem, std::chrono::milliseconds timeout);

 private:
  std::string wait_for_result(const std::string& result, const std::string& voters, int64_t number,
                              std::chrono::milliseconds timeout);

  World& world_;
  const std::string name_;
  const int size_;
  int generation_ = 0;
  int64_t number_ = 0;    // of votes in this generation
  int64_t problems_ = 0;  // of these, that ended with a problem
};

}  // namespace pipewright::comms

#endif  // PIPEWRIGHT_COMMS_VOTE_H_
