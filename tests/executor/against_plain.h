#ifndef PIPEWRIGHT_TESTS_EXECUTOR_AGAINST_PLAIN_H_
#define PIPEWRIGHT_TESTS_EXECUTOR_AGAINST_PLAIN_H_

#include <ATen/core/Generator.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "pipewright/comms/world.h"
#include "pipewright/executor/executor.h"
#include "pipewright/ir/schedule.h"
#include "pipewright/modules/data_parallel.h"

// Models whose stages are functions, trained with a pipeline and without one: microbatch by
// microbatch, through all stages, each loss divided by the number of microbatches, by AdamW, which
// leaves a parameter alone if it has no gradient.
//
//   const Outcome plain = train_plain(make(num_stages), microbatches, steps);
//   train_rank_of(program, make(num_stages), world, steps, {}, &trained);  // on each rank
//   EXPECT_EQ(difference(plain, trained), "");

namespace pipewright::executor {

struct PlainModel {
  std::vector<Tensors> weights;  // by stage
  // What a stage computes, from the outputs of the one before and the extra inputs.
  std::function<Tensors(int stage, const Tensors& inputs)> forward;
  LossFunction loss;
  Batch batch;
  // Writes to what a stage gets, before its forward and outside of its unit.
  std::function<void(int stage, const Tensors& inputs)> before_stage = {};
  std::function<void(int step)> before_step = {};  // on each rank
  Tensors buffers = {};  // by stage: what backwards write to, besides gradients
  // By stage, for the executor; empty: only one rank has a stage.
  std::vector<std::shared_ptr<modules::DataParallel>> data_parallel = {};
  // Without a pipeline: microbatches share a part of the graph.
  bool retains_graph = false;
};

// Makes equal models in each thread and process.
using MakePlainModel = std::function<PlainModel(int num_stages)>;

// Of all steps. Each rank of a pipeline adds its own; what it does not have is undefined.
struct Outcome {
  std::vector<std::vector<at::Tensor>> losses;    // by step and microbatch
  std::vector<std::map<int, Tensors>> grads;      // by step and stage, of the weights
  std::map<int, Tensors> weights, buffers;        // by stage, at the end
  std::vector<Tensors> input_grads, extra_grads;  // by step
};

Outcome train_plain(const PlainModel& model, int num_stages, int num_microbatches, int steps);

// `options`: the loss and the device are set here.
Outcome train_rank_of(const ir::Program& program, const PlainModel& model, comms::World& world,
                      int steps, ExecutorOptions options = {});

// Random numbers that ranks that are threads may draw at the same time.
class Numbers {
 public:
  explicit Numbers(uint64_t seed);
  // Normally distributed, in double precision, on tests::here().
  at::Tensor draw(at::IntArrayRef sizes);

 private:
  at::Generator generator_;
};

// Adds up what ranks have.
Outcome sum_of_ranks(const std::vector<Outcome>& ranks);

// The part of `all` that one rank of a pipeline has.
Outcome part_of(const Outcome& all, const ir::Placement& placement, int rank);

// The part of `all` that one of `copies` ranks has if they shard each weight along dimension 0.
Outcome shards_of(const Outcome& all, int copy, int copies);

// What differs by more than 1e-12 of the largest element; empty if nothing does. A gradient of
// zeros is not the same as none, unless `zeros_are_none`.
std::string difference(const Outcome& expected, const Outcome& found, bool zeros_are_none = false);

// Trains with a schedule of the catalogue on ranks that are threads, and returns the difference, or
// the errors of the ranks.
std::string difference_from_plain(const MakePlainModel& make, const std::string& schedule,
                                  int ranks = 2, int microbatches = 4, int steps = 3,
                                  const ExecutorOptions& options = {}, bool zeros_are_none = false);

// 1F1B, ZB-H1, ZBV, and one with several stages per rank.
extern const std::vector<std::string> kUsualSchedules;

}  // namespace pipewright::executor

#endif  // PIPEWRIGHT_TESTS_EXECUTOR_AGAINST_PLAIN_H_
