#ifndef PIPEWRIGHT_EXECUTOR_BATCH_COMPARISON_H_
#define PIPEWRIGHT_EXECUTOR_BATCH_COMPARISON_H_

#include <cstdint>
#include <string>
#include <vector>

#include "pipewright/comms/world.h"

namespace pipewright::executor {

// Compares the batch of a step between the ranks that pass equal ones (ExecutorOptions::same_batch)
// through the store: one request, and no rank waits. For one thread at a time.
class BatchComparison {
 public:
  // `world` must outlive the object, which all ranks of `group` must create in the same order.
  // Throws std::invalid_argument if no World made the group.
  BatchComparison(comms::World& world, const c10d::Backend& group);

  // Returns how `lines`, this rank's batch, differ from those of the first rank that called this
  // for the same step; empty if they do not. To be called once per step on all ranks, without lines
  // on a rank that has nothing to compare. The next call must be after a vote of the ranks.
  std::string difference(const std::vector<std::string>& lines);

 private:
  comms::World& world_;
  const std::string name_;
  int generation_ = 0;
  int64_t number_ = 0;  // of calls in this generation
};

}  // namespace pipewright::executor

#endif  // PIPEWRIGHT_EXECUTOR_BATCH_COMPARISON_H_
