#ifndef PIPEWRIGHT_EXECUTOR_EXECUTOR_H_
#define PIPEWRIGHT_EXECUTOR_EXECUTOR_H_

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "pipewright/comms/channels.h"
#include "pipewright/comms/world.h"
#include "pipewright/executor/action_runner.h"
#include "pipewright/executor/microbatches.h"
#include "pipewright/ir/schedule.h"

// Runs a program on real tensors: each rank makes an Executor of the same program with the stages
// that it holds, and calls step() for each batch.
//
//   Executor executor(program, {{0, {make_stage(first)}}, {2, {make_stage(third)}}}, world,
//                     {.loss = cross_entropy});
//   for (...) {
//     const StepResult result = executor.step({.inputs = {tokens}, .targets = {next}});
//     optimizer.step();
//     optimizer.zero_grad();
//   }
//
// Gradients, losses and outputs are those of the model run microbatch by microbatch without a
// pipeline; gradients accumulate over steps until they are zeroed. After step() the current stream
// is behind every reduction. Communication is posted at its place in the list and waited for where
// it is needed (ir/channel.h).
//
// A failure, a wrong batch on one rank among them, ends the step on every rank with a StepError;
// the executor then refuses further steps. Gradients may hold a part of the failed step.

namespace pipewright::executor {

// What went wrong, and where. Other ranks throw one with the same first cause.
class StepError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

struct ExecutorOptions {
  // Of the last stage; a program with a backward needs one.
  LossFunction loss = {};
  // Scales the gradient that enters backward on the last stage by 1/M, M being the number of
  // microbatches: right for losses that are means. What was accumulated before stays as it is.
  bool scale_grads = true;
  // Runs a program that the verifier refuses: then only the checks of each action protect it.
  bool allow_unverified = false;
  // Of each wait for another rank. The world's, if it is not set.
  std::optional<std::chrono::milliseconds> timeout = {};
  // Where the stages' tensors are.
  at::Device device = at::kCPU;
  // How batches are split into microbatches, and outputs put together.
  SplitDims input_dims = {};
  SplitDims extra_dims = {};
  SplitDims target_dims = {};
  SplitDims output_dims = {};
  // The outputs of each stage, if they are to be checked from the first step on; otherwise they are
  // learned in it, and checked from then on.
  std::function<TensorMetas(int stage, int microbatch)> output_metas = {};
  // The world's rank of each rank of the program; if it is empty, they are the same.
  std::vector<int> ranks = {};
};

// What one rank gives to a step; what it does not need may be empty.
struct Batch {
  Tensors inputs = {};   // of the first stage
  Tensors extra = {};    // for each stage of this rank, behind what the stage before gives
  Tensors targets = {};  // of the loss, on the rank of the last stage
};

struct StepResult {
  std::vector<at::Tensor> losses;  // one a microbatch, on the rank of the last stage; unscaled
  Tensors outputs;                 // of the whole batch, there, if they were asked for
};

// Of one rank, for one thread at a time.
class Executor {
 public:
  // Collective over the ranks of the program. `world` must outlive it. Throws
  // std::invalid_argument, naming what is wrong, on every rank: for a program that is not verified,
  // for stages that are not the rank's or are missing, and where another rank has a different
  // program, placement, channel model or options.
  Executor(ir::Program program, std::map<int, LocalStage> stages, comms::World& world,
           ExecutorOptions options);
  ~Executor();
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  // All actions of the program, on a batch that is split here, or on microbatches.
  StepResult step(const Batch& batch, bool return_outputs = false);
  StepResult step(Microbatches microbatches, bool return_outputs = false);

  // The forward alone, without gradients, of any schedule: the program's compute order is lowered
  // again without its backwards. Losses need targets.
  StepResult eval(const Batch& batch, bool return_outputs = true);
  StepResult eval(Microbatches microbatches, bool return_outputs = true);

  // Calls `function` for actions of this kind instead; kOverlapFB for compounds, whose parts have
  // functions of their own.
  void set_function(ir::ActionKind kind, ActionFunction function);

  // The next step and the next eval learn shapes anew. On all ranks between the same steps.
  void forget_shapes();

  const ir::Program& program() const { return program_; }
  int rank() const { return rank_; }

 private:
  void verify() const;
  void check_stages(const std::map<int, LocalStage>& stages) const;
  // `error`: why this rank cannot be one of them, or empty.
  void compare_digests(const std::string& error) const;
  Microbatches split(const Batch& batch) const;
  void check_counts(const Microbatches& microbatches) const;
  const RowPlan& eval_row();
  // `prepare` gives the microbatches.
  StepResult run(bool evaluates, bool return_outputs, const std::function<Microbatches()>& prepare);
  void linger(const std::string& counter) const;
  [[noreturn]] void fail(const std::string& message);

  const ir::Program program_;
  const ExecutorOptions options_;
  comms::World& world_;
  const std::vector<int> ranks_;
  const int rank_;         // of the program
  const std::string key_;  // of this executor, in the store
  const std::chrono::milliseconds timeout_;
  RowPlan row_;
  bool has_backward_ = false;

  std::optional<comms::Channels> channels_;
  std::optional<Transfers> transfers_;
  std::optional<ActionRunner> runner_;
  std::optional<RowPlan> eval_row_;
  int64_t step_ = 0;     // that runs, or runs next
  std::string failure_;  // why no further step can run; empty if it can
};

}  // namespace pipewright::executor

#endif  // PIPEWRIGHT_EXECUTOR_EXECUTOR_H_
