#ifndef PIPEWRIGHT_EXECUTOR_EXECUTOR_H_
#define PIPEWRIGHT_EXECUTOR_EXECUTOR_H_

#include <chrono>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "pipewright/comms/world.h"
#include "pipewright/executor/action_function.h"
#include "pipewright/executor/loss_function.h"
#include "pipewright/executor/microbatches.h"
#include "pipewright/executor/stage.h"
#include "pipewright/executor/step_lock.h"
#include "pipewright/executor/tensor_meta.h"
#include "pipewright/ir/schedule.h"
#include "pipewright/ir/timeline.h"
#include "pipewright/modules/tied_parameters.h"

// Runs a program on real tensors. Each rank creates an Executor of the same program, with its own
// stages, and calls step() once per batch:
//
//   // Rank r of a pipeline with one stage per rank; `module` is stage r of the model.
//   Executor executor(program, {{world.rank(), {make_stage(module)}}}, world,
//                     {.loss = [](const Tensors& outputs, const Tensors& targets) {
//                       return at::mse_loss(outputs[0], targets[0]);
//                     }});
//   torch::optim::AdamW optimizer(module->parameters());
//   for (const auto& [inputs, targets] : batches) {
//     optimizer.zero_grad();
//     const StepResult result = executor.step({.inputs = {inputs}, .targets = {targets}});
//     optimizer.step();
//   }
//   const StepResult result = executor.eval({.inputs = {inputs}});  // result.outputs
//
// Results. Gradients, losses and outputs are those of the model run microbatch by microbatch
// without a pipeline. Gradients accumulate over steps until they are zeroed. Inputs and extra
// inputs that require a gradient get it too, at the end of the step, on the rank that passed them;
// it flows on into whatever they were computed from. When step() returns, the current stream is
// ordered after every reduction of gradients.
//
// Each SEND and RECV is posted at its place in the program. A compute waits only for its own RECVs
// (ir/channel.h). A LocalStage with a DataParallel (fsdp, ddp) gathers its parameters at UNSHARD,
// frees them at RESHARD and reduces their gradients at REDUCE_GRAD. Stages that the program names
// in `recompute` store their inputs only, and run their forward again in backward
// (Stage::set_recompute); clear the list of a program whose modules checkpoint themselves. What
// stages in `offload` save is on the host in between (Stage::set_offload), unless the device is the
// CPU.
//
// Slices. If the program cuts microbatches into slices, each slice has the place of a microbatch:
// in losses, which are then means over slices, in `per_microbatch`, and in the scale of gradients.
// Attention gets the slices before its own from a SliceCache (slice_cache.h), which each stage
// names (ModuleStage::set_slice_cache). Gradients are those of whole sequences.
//
// Each action is a range of LibTorch's profiler, named as PyTorch names it: `PP:0F3`.
//
// Failures. A wrong batch on any rank is a BatchError on every rank of all pipelines that reduce
// gradients together, before anything of the step has run: the next step may follow. Any other
// exception in a step ends it with a StepError on every rank of the world
// (comms/failure/failure_domain.h), within seconds, and gradients may hold part of the step. If
// nothing progresses on a rank until a time limit is over, the error is a HangError, and each
// process prints to stderr who causes it and where all ranks are (watchdog.h). The executor then
// refuses further steps until all ranks of the world have called reset():
//
//   try {
//     executor.step(batch);
//     executor.confirm();  // no rank can fail in this step any more
//     optimizer.step();
//   } catch (const BatchError&) {
//     continue;  // the next batch
//   } catch (const StepError&) {
//     step = executor.reset();  // the step to repeat
//     optimizer.zero_grad();
//   }

namespace pipewright::executor {

// A step failed, on this rank or on another one. The message starts with the first cause, which is
// the same on all ranks of the world: "rank 2, step 1, action 5 `2F2`: ...". The lines after it say
// where that rank is (mesh coordinates, host and process), which ranks do not answer, and what this
// rank did then. Ranks are those of the world.
class StepError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// A step hung: some rank made no progress until a time limit was over. The message names the
// culprit, and says where every rank is.
class HangError : public StepError {
 public:
  using StepError::StepError;
};

// A rank's batch was wrong. Nothing of the step has run, and the executor can be used further.
class BatchError : public StepError {
 public:
  using StepError::StepError;
};

struct ExecutorOptions {
  // Called on the rank of the last stage; required there if the program has a backward. If it takes
  // targets (loss_function.h), step() requires them.
  LossFunction loss = {};
  // Scales the gradient that enters the backward of the last stage by 1 / number of microbatches,
  // which is right for losses that are means. Gradients accumulated before are not scaled.
  bool scale_grads = true;
  // Runs the program even if the verifier rejects it. Its errors are then found only by the checks
  // of each action and by timeouts.
  bool allow_unverified = false;
  // The timeout of each wait for another rank, and on a device of a step's end after step() has
  // returned, whose error names the action that the device was at; by default that of the world.
  std::optional<std::chrono::milliseconds> timeout = {};
  // The same for the first step and its confirm(), and for the first after reset(), which also load
  // data, allocate memory and connect; by default `timeout`. Data-parallel collectives have the
  // world's timeout in every step, so create the world with the longer of both.
  std::optional<std::chrono::milliseconds> first_timeout = {};
  // Called if this rank is still stuck in its step after the report of a hang, on the watcher's
  // thread, with the report. Nothing can interrupt such a step, so a trainer ends the process here.
  std::function<void(const std::string& report)> on_stuck = {};
  // The device of the stages' tensors.
  at::Device device = at::kCPU;
  // On a device, the two parts of a compound run at the same time, on two streams, unless
  // microbatches are cut into slices; on the CPU and if false, one after the other.
  bool overlap_compounds = true;
  // How batches are split into microbatches, and outputs concatenated.
  SplitDims input_dims = {};
  SplitDims extra_dims = {};
  std::map<int, SplitDims> extra_of_dims = {};  // by stage, the same on all ranks
  SplitDims target_dims = {};
  SplitDims output_dims = {};
  // The dimension, of the sequence, along which each tensor that is split into microbatches is then
  // cut into slices (ir::Schedule::slices), and along which their outputs are concatenated.
  int slice_dim = 1;
  // Returns the shapes and dtypes of a stage's outputs, which are then checked from the first step
  // on. By default they are learned in the first step and checked in later ones, and so are those
  // of batches.
  std::function<TensorMetas(int stage, int microbatch)> output_metas = {};
  // Lets shapes and dtypes differ between steps and microbatches. A small header then precedes the
  // tensors of each transfer, and a RECV of the tensors is posted only when its header has arrived.
  // Needs the channel model `edge`; excludes output_metas.
  bool dynamic_shapes = false;
  // The world rank of each program rank; by default both are equal.
  std::vector<int> ranks = {};
  // The ranks that run the same stages on equal batches, as those of a tensor-parallel dimension
  // do; null if this rank is the only one. A batch that is wrong on one of them, or has other
  // shapes than on another, is a BatchError on all. Without it the others would wait for that rank
  // in the collectives of their stages.
  comms::BackendPtr same_batch = nullptr;
  // Parameters that stages share. A training step adds up the gradients of their copies at its end,
  // after all reductions.
  std::shared_ptr<modules::TiedParameters> tied = nullptr;
  // Returns the text of an exception that ends the step, for the errors of all ranks; by default
  // its what(). Called on the thread of the step. For exceptions of another language, whose what()
  // lacks their type.
  std::function<std::string(const std::exception&)> describe = {};
  // Taken for the forwards and losses of a step (step_lock.h); may be null.
  std::shared_ptr<StepLock> lock = nullptr;
};

// What a step returns. Losses and outputs are empty except on the rank of the last stage.
struct StepResult {
  // One per microbatch, as ExecutorOptions::loss returned it: not divided by the number of
  // microbatches, but multiplied by the scale of a GradScaler that it calls. In eval() without the
  // targets of the loss, undefined tensors.
  std::vector<at::Tensor> losses;
  Tensors outputs;  // of the whole batch, if requested
  // The share of this rank's step in which it computed nothing (recorder.h), while record() is on;
  // nullopt on a device, which may not have ended the step. schedule::report_on of recording() has
  // the bubble of the whole pipeline.
  std::optional<double> bubble = {};
};

// One rank of a pipeline. For one thread at a time.
class Executor {
 public:
  // Collective over the ranks of the program. `world` must outlive the executor. Throws
  // std::invalid_argument on every rank if the program does not pass the verifier, if `stages` are
  // not exactly this rank's stages, if one cannot recompute as the program says, if a loss is
  // missing, if options.ranks of any rank does not name one world rank per program rank or lacks
  // that rank, or if another rank has a different program, placement, channel model or options.
  // Throws std::runtime_error if another rank does not create its executor before the timeout;
  // StepError, with the first cause, if the world fails meanwhile.
  Executor(ir::Program program, std::map<int, LocalStage> stages, comms::World& world,
           ExecutorOptions options);
  ~Executor();
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  // Collective. Runs all actions of the program, on a batch, which is split into microbatches, or
  // on microbatches. Returns when this rank has nothing more to do. Throws BatchError if the batch
  // of any rank is wrong or a rank is in c10::InferenceMode, and StepError if the step fails on any
  // rank, also because a loss requires no gradient or outputs cannot be concatenated.
  StepResult step(const Batch& batch, bool return_outputs = false);
  StepResult step(Microbatches microbatches, bool return_outputs = false);

  // Collective. Runs only the forward, without gradients, for any schedule: the program's compute
  // order is lowered again without its backwards. If the targets of the loss are missing, no loss
  // is computed. As with PyTorch's schedule.eval(), modules keep their mode: without module->eval()
  // before it and train() after it, dropout drops and batch norms update their running statistics.
  // Throws like step().
  StepResult eval(const Batch& batch, bool return_outputs = true);
  StepResult eval(Microbatches microbatches, bool return_outputs = true);

  // Collective over all ranks of the world, after step() or eval(): returns on all ranks once all
  // have completed it, or throws StepError on all. A trainer that continues after failures calls it
  // right before it updates its weights. On a device it blocks the host until the device has done
  // what was queued on the current stream, the step and what the caller queued after it: until then
  // the step can still fail there. A trainer that ends at a failure need not call it.
  void confirm();

  // Collective over all ranks of the world, after a StepError: connects all groups of the world
  // again, also those of fsdp and ddp, and makes the executor usable. Gradients must be zeroed.
  // Returns the number of the next step, the same on all ranks: the first one that is not
  // confirmed, or without confirm() the first that some rank has not completed. Throws
  // std::runtime_error if a rank does not call it before the world's timeout.
  int64_t reset();

  // Calls `function` instead of each action of this kind (action_function.h). kOverlapFB stands for
  // compounds; the parts of a compound run through the functions of their own kinds. An empty
  // function restores the default.
  void set_function(ir::ActionKind kind, ActionFunction function);

  // Starts or ends the recording of steps: when each action runs, on a device by its events, which
  // do not block the host. Evaluation is not recorded.
  void record(bool on = true);
  // Collective over the ranks of the program: when each action of the last recorded step ran, in
  // seconds from the start of its first action, by the clock of program rank 0; see recorder.h for
  // what counts. Clocks of other hosts are compared with that one when the executor is created and
  // here, so their offsets and a steady drift are corrected. Empty on other ranks. Waits until the
  // device has ended the step. Throws ContractError if no step was recorded since record(), and
  // StepError if a rank fails or does not call it before the timeout.
  ir::Timeline recording();

  // Makes the next step and the next eval learn shapes again. All ranks must call it between the
  // same two steps. Needed before a training step with other shapes. An evaluation whose batch has
  // other shapes than the last one's learns by itself.
  void forget_shapes();

  const ir::Program& program() const;
  // A short text that is equal for programs with equal rows: checkpoint::Snapshot::program_digest.
  std::string program_digest() const;
  int rank() const;

 private:
  class Impl;
  const std::unique_ptr<Impl> impl_;
};

}  // namespace pipewright::executor

#endif  // PIPEWRIGHT_EXECUTOR_EXECUTOR_H_
