#ifndef PIPEWRIGHT_EXECUTOR_BATCH_CHECK_H_
#define PIPEWRIGHT_EXECUTOR_BATCH_CHECK_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "pipewright/comms/world.h"
#include "pipewright/executor/microbatches.h"
#include "pipewright/executor/tensor_meta.h"

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
  // Compares likewise, and returns how this rank's lines differ; empty if they do not.
  std::string difference(const std::vector<std::string>& lines);

 private:
  comms::World& world_;
  const std::string name_;
  int generation_ = 0;
  int64_t number_ = 0;  // of calls in this generation
};

// How many rows a batch has: the size of each of its tensors along the dimension in which it is
// split.
struct Rows {
  int64_t count = 0;
  int dim = 0;         // of the first such tensor,
  std::string tensor;  // which is "input 0"
  std::string option;  // that says along which dimension it is split: "input_dims"
};

struct SplitBatch {
  Microbatches microbatches;
  std::optional<Rows> rows = {};  // nullopt if nothing was split
};

struct WrongRows {
  int rank = 0;  // the higher one of two that differ
  std::string text;
};

// Compares the number of rows with that of the first rank of the pipeline that called this for the
// same step. To be called like BatchComparison::first.
std::optional<WrongRows> compare_rows(BatchComparison& comparison, int rank,
                                      const std::optional<Rows>& rows);

// What one rank's batch must look like: checked before a step, so that a wrong batch is reported
// before anything has run. Inputs and targets that this rank does not need are ignored, and so are
// extra inputs of stages that are not on this rank. For one thread at a time.
class BatchCheck {
 public:
  struct Options {
    int num_microbatches = 0;  // or slices of all microbatches
    Slicing slices = {};
    int num_stages = 0;
    std::vector<int> stages = {};  // of this rank
    bool needs_targets = false;    // this rank has the last stage, and a loss that takes targets
    bool same_shapes = false;      // all training steps must have the shapes of the first one
    BatchDims dims = {};
  };
  explicit BatchCheck(Options options) : options_(std::move(options)) {}

  // Splits a batch. Throws std::invalid_argument if a tensor cannot be split, or has another number
  // of rows than the others.
  SplitBatch split(const Batch& batch) const;
  // Throws std::invalid_argument if the number of microbatches is wrong, if inputs are missing, if
  // targets are missing in a training step, or for extra inputs of a stage that does not exist;
  // with same_shapes also if a tensor's dtype or shape differs from the first training step's.
  void check(const Microbatches& microbatches, bool with_backward) const;
  // Whether check() compares with the shapes of the first step, so that ranks need not compare
  // theirs.
  bool is_known(bool with_backward) const {
    return options_.same_shapes && with_backward && first_[with_backward];
  }
  // The dtypes and shapes of the tensors that this rank needs, one per line.
  std::vector<std::string> describe(const Microbatches& microbatches) const;
  // Makes this batch the first training step's, unless there was one, or the last evaluation's.
  void remember(const Microbatches& microbatches, bool with_backward);
  // Whether the last evaluation had other shapes.
  bool differs_from_last_evaluation(const Microbatches& microbatches) const;
  void forget(bool with_backward) { first_[with_backward].reset(); }

 private:
  struct List {
    std::string what;  // "extra input"
    const std::vector<Tensors>& microbatches;
  };
  // Those that this rank needs, without empty ones.
  std::vector<List> lists_of(const Microbatches& microbatches) const;
  bool has_stage(int stage) const;

  // By the list's name, then by microbatch.
  using Shapes = std::map<std::string, std::vector<TensorMetas>>;
  Shapes shapes_of(const Microbatches& microbatches) const;

  const Options options_;
  std::optional<Shapes> first_[2];  // by with_backward: the last evaluation, the first step
};

}  // namespace pipewright::executor

#endif  // PIPEWRIGHT_EXECUTOR_BATCH_CHECK_H_
