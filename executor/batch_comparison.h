#ifndef PIPEWRIGHT_EXECUTOR_BATCH_COMPARISON_H_
#define PIPEWRIGHT_EXECUTOR_BATCH_COMPARISON_H_

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "pipewright/comms/world.h"

namespace pipewright::executor {

// Compares lines of text about the batch of a step between ranks through the store: one request,
// and no rank waits. For one thread at a time.
class BatchComparison {
 public:
  // Between the ranks that use this name, and no others do. `world` must outlive the object.
  BatchComparison(comms::World& world, std::string name) : world_(world), name_(std::move(name)) {}
  // Between the ranks of `group`, which pass equal batches (ExecutorOptions::same_batch). All must
  // create it in the same order. Throws std::invalid_argument if no World made the group.
  BatchComparison(comms::World& world, const c10d::Backend& group);

  // What another rank compares with.
  struct Lines {
    std::string rank;
    std::vector<std::string> lines;
  };
  // Returns the lines of the first rank that called this for the same step; nullopt if this is the
  // one, or without lines. To be called once per step on all ranks, without lines on a rank that
  // has nothing to compare. The next call must be after a vote of the ranks.
  std::optional<Lines> first(const std::vector<std::string>& lines);
  // The same, and returns how this rank's lines differ from those; empty if they do not.
  std::string difference(const std::vector<std::string>& lines);

 private:
  comms::World& world_;
  const std::string name_;
  int generation_ = 0;
  int64_t number_ = 0;  // of calls in this generation
};

}  // namespace pipewright::executor

#endif  // PIPEWRIGHT_EXECUTOR_BATCH_COMPARISON_H_
