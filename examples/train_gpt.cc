// Trains a small GPT on the bytes of a file, with pipeline and data parallelism: train_gpt --help.
//
// This is the library's example of a trainer: train() is the complete training loop; the rest is
// the command line, the data and the display. Ranks are threads of this process; under `pipewright
// launch`, torchrun or srun, each process is one rank, and ranks communicate over Gloo. Equal seeds
// produce equal weights and batches either way.
#include <ATen/Parallel.h>
#include <torch/optim/adamw.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <optional>
#include <thread>

#include "examples/checkpoints.h"
#include "examples/gpt.h"
#include "examples/progress.h"
#include "examples/recorded_step.h"
#include "examples/text.h"
#include "examples/usage_error.h"
#include "pipewright/checkpoint/torch/training_state.h"
#include "pipewright/comms/error_file.h"
#include "pipewright/comms/gloo.h"
#include "pipewright/comms/mesh.h"
#include "pipewright/comms/threads.h"
#include "pipewright/ddp/replicate.h"
#include "pipewright/executor/digest.h"
#include "pipewright/executor/executor.h"
#include "pipewright/executor/module_stage.h"
#include "pipewright/fsdp/fully_shard.h"
#include "pipewright/modules/clip_grad_norm.h"
#include "pipewright/modules/distribution.h"
#include "pipewright/schedule/compile.h"

namespace pipewright::examples {
namespace {

struct Options {
  std::string data = "/usr/share/common-licenses/GPL-3";
  std::string schedule = "1F1B";
  int pp = 2;
  int dp_replicate = 1;
  int dp_shard = 1;
  int stages_per_rank = 0;  // 0: the schedule's default
  int microbatches = 4;
  int64_t steps = 200;
  int64_t batch = 16;
  double learning_rate = 3e-3;
  bool has_learning_rate = false;  // --lr was given: it replaces that of a checkpoint
  double clip = 0;                 // 0: gradients are not clipped
  at::ScalarType param_dtype = at::kFloat;
  at::ScalarType reduce_dtype = at::kFloat;
  std::string record;        // a file; empty: nothing is recorded
  int64_t record_step = -1;  // -1: the last step
  bool json = false;
  CheckpointFlags checkpoints;
  GptConfig model;

  // Ranks of the data-parallel dimensions: they train the same stages on different data.
  int copies() const { return dp_replicate * dp_shard; }
  int64_t recorded_step() const { return record_step < 0 ? steps - 1 : record_step; }
  bool is_mixed_precision() const {
    return param_dtype != at::kFloat || reduce_dtype != at::kFloat;
  }
};

ir::Program make_program(const Options& options) {
  schedule::CompileResult result =
      schedule::compile({.source = options.schedule,
                         .shape = {.ranks = options.pp,
                                   .stages = options.pp * options.stages_per_rank,
                                   .microbatches = options.microbatches}});
  if (!result.ok()) {
    const ir::Diagnostic& error = result.diagnostics.kept().front();
    throw UsageError("--schedule: " + error.message +
                     (error.help.empty() ? "" : "; " + error.help));
  }
  return std::get<ir::Program>(std::move(*result.schedule));
}

// "--pp 2 times --dp-shard 4".
std::string times_copies(const std::string& flag, int value, const Options& options) {
  const auto times = [](const std::string& of, int count) {
    return " times " + of + " " + std::to_string(count);
  };
  std::string text = flag + " " + std::to_string(value);
  if (options.dp_replicate > 1 || options.dp_shard == 1)
    text += times("--dp-replicate", options.dp_replicate);
  if (options.dp_shard > 1) text += times("--dp-shard", options.dp_shard);
  return text;
}

void check(const Options& options) {
  if (options.batch % (options.microbatches * options.copies()) != 0) {
    throw UsageError("--batch: expected a multiple of " +
                     times_copies("--microbatches", options.microbatches, options) + ", got " +
                     std::to_string(options.batch));
  }
  if (options.model.dim % kHeadDim != 0) {
    throw UsageError("--dim: expected a multiple of the head dimension " +
                     std::to_string(kHeadDim) + ", got " + std::to_string(options.model.dim));
  }
  check(options.checkpoints);
  if (options.record_step >= 0 && options.record.empty())
    throw UsageError("--record-step requires --record");
  if (options.record_step >= options.steps) {
    throw UsageError("--record-step: expected a step below --steps " +
                     std::to_string(options.steps) + ", got " +
                     std::to_string(options.record_step));
  }
  if (!options.record.empty()) check_writable(options.record);
}

// This rank's part of a batch that starts at `starts`: inputs and targets, each [windows, context].
executor::Batch batch_of(const Text& text, const std::vector<int64_t>& starts,
                         const comms::Mesh& mesh) {
  const int copy =
      mesh.coordinate("dp_replicate") * mesh.size("dp_shard") + mesh.coordinate("dp_shard");
  const size_t size = starts.size() / (static_cast<size_t>(mesh.size("dp_replicate")) *
                                       static_cast<size_t>(mesh.size("dp_shard")));
  std::vector<at::Tensor> inputs, targets;
  for (size_t i = 0; i < size; ++i) {
    const auto [input, target] = text.window(starts[size * static_cast<size_t>(copy) + i]);
    inputs.push_back(torch::tensor(input));
    targets.push_back(torch::tensor(target));
  }
  return {.inputs = {at::stack(inputs)}, .targets = {at::stack(targets)}};
}

// Shards the parameters bottom-up: each block as one group, then the rest of the stage. Shards have
// replicas with --dp-replicate; with --dp-shard 1 there are only replicas.
std::shared_ptr<modules::DataParallel> shard(GptStage& stage, comms::Mesh& mesh,
                                             const Options& options) {
  const std::vector<std::string> dims = {"dp_replicate", "dp_shard"};
  fsdp::Options sharding;
  if (options.is_mixed_precision()) {
    sharding.mixed_precision = {.param_dtype = options.param_dtype,
                                .reduce_dtype = options.reduce_dtype};
  }
  std::vector<std::shared_ptr<fsdp::Sharded>> units;
  for (const auto& block : stage.blocks())
    units.push_back(fsdp::fully_shard(*block, mesh, dims, sharding));
  return fsdp::fully_shard(stage, mesh, dims, sharding)->data_parallel();
}

// The mean over the microbatches of this rank and over the ranks of `group`.
double mean(const std::vector<at::Tensor>& losses, c10d::Backend& group) {
  std::vector<at::Tensor> sum = {at::zeros({}, at::kDouble)};
  for (const at::Tensor& loss : losses) sum[0] += loss;
  if (group.getSize() > 1) group.allreduce(sum)->wait();
  return sum[0].item<double>() / static_cast<double>(losses.size()) / group.getSize();
}

// Runs a step that is recorded, and writes the recording on the first rank of the pipeline. Returns
// its figures on every rank of `pipeline`.
executor::StepResult recorded_step(const Options& options, executor::Executor& executor,
                                   const executor::Batch& batch, c10d::Backend& pipeline,
                                   std::optional<RecordedStep>* recorded) {
  executor.record();
  executor::StepResult result = executor.step(batch);
  ir::Timeline measured = executor.recording();
  executor.record(false);
  RecordedStep own;
  if (executor.rank() == 0)
    own = write_recording(options.record, options.recorded_step(), executor.program(),
                          std::move(measured));
  // The first rank has the figures, the others have zeros.
  std::vector<at::Tensor> sum = {
      torch::tensor({own.seconds, own.bubble, own.predicted_bubble}, at::kDouble)};
  if (pipeline.getSize() > 1) pipeline.allreduce(sum)->wait();
  const auto figure = [&](int64_t at) { return sum[0][at].item<double>(); };
  *recorded = RecordedStep{options.recorded_step(), figure(0), figure(1), figure(2)};
  return result;
}

Progress::Style style_of(const Options& options) {
  if (options.json) return Progress::Style::kJson;
  return isatty(STDOUT_FILENO) != 0 ? Progress::Style::kBar : Progress::Style::kLines;
}

// One rank.
void train(const Options& options, const ir::Program& program, const Text& text,
           comms::World& world) {
  // The ranks: pipelines along "pp", data parallelism along the other dimensions.
  comms::Mesh mesh(
      world,
      {{"pp", options.pp}, {"dp_replicate", options.dp_replicate}, {"dp_shard", options.dp_shard}});
  const comms::BackendPtr copies = mesh.group({"dp_replicate", "dp_shard"});
  // The ranks that have different parameters.
  const comms::BackendPtr whole_model = mesh.group({"pp", "dp_shard"});

  // The model: this rank's stages, replicated, sharded or both.
  const int num_stages = program.placement.num_stages();
  std::map<int, executor::LocalStage> stages;
  std::vector<at::Tensor> parameters;
  checkpoint::TrainingState state;
  for (const int index : program.placement.stages_of(mesh.coordinate("pp"))) {
    const auto stage = make_gpt_stage(options.model, index, num_stages);
    const bool is_sharded = options.dp_shard > 1 || options.is_mixed_precision();
    stages[index].stage = executor::make_stage(stage);
    stages[index].data_parallel =
        is_sharded ? shard(*stage, mesh, options) : ddp::replicate(*stage, copies)->data_parallel();
    state.add_module(*stage, modules::layouts(*stage));
    for (const at::Tensor& parameter : stage->parameters()) parameters.push_back(parameter);
  }
  const bool has_loss = stages.contains(num_stages - 1);

  // The executor: runs this rank's row of the program on these stages.
  executor::Executor executor(
      program, std::move(stages), world,
      {.loss = [](const executor::Tensors& outputs,
                  const executor::Tensors& targets) { return gpt_loss(outputs[0], targets[0]); },
       .ranks = mesh.ranks({"pp"})});

  // The optimizer, and what it and the model were when they were saved.
  torch::optim::AdamW optimizer(parameters, torch::optim::AdamWOptions(options.learning_rate));
  state.set_optimizer(optimizer);
  checkpoint::Snapshot run;
  run.schedule = options.schedule;
  run.program_digest = executor::digest_of(program, {}).front().value;
  run.mesh.assign(mesh.layout().dims().begin(), mesh.layout().dims().end());
  run.state = {{"seed", std::to_string(options.model.seed)}};
  Checkpoints checkpoints(options.checkpoints, world, state, run);
  const int64_t first_step = checkpoints.resume();
  if (options.has_learning_rate) {
    for (auto& group : optimizer.param_groups()) group.options().set_lr(options.learning_rate);
  }

  // Training: the usual loop.
  // The ranks of one pipeline: only one of its copies is recorded, and its last rank reports.
  const bool first_copy = mesh.coordinate("dp_replicate") == 0 && mesh.coordinate("dp_shard") == 0;
  const bool reports = has_loss && first_copy;
  const bool records = !options.record.empty();
  if (records && options.recorded_step() < first_step)
    throw UsageError("--record: expected a step from " + std::to_string(first_step) +
                     ", where the checkpoint goes on, got " +
                     std::to_string(options.recorded_step()));
  const int64_t record_at = first_copy && records ? options.recorded_step() : -1;
  const comms::BackendPtr pipeline =
      records ? mesh.group({"pp"}) : nullptr;  // every rank requests its group
  std::optional<RecordedStep> recorded;
  Progress progress(style_of(options), first_step, options.steps,
                    options.batch * options.model.context);
  for (int64_t step = first_step; step < options.steps; ++step) {
    optimizer.zero_grad();
    const std::vector<int64_t> starts = text.batch(options.model.seed, step, options.batch);
    const executor::Batch batch = batch_of(text, starts, mesh);
    const executor::StepResult result =
        step == record_at ? recorded_step(options, executor, batch, *pipeline, &recorded)
                          : executor.step(batch);
    if (options.clip > 0) modules::clip_grad_norm_(parameters, *whole_model, options.clip);
    if (!parameters.empty()) optimizer.step();
    const double loss = has_loss ? mean(result.losses, *copies) : 0;
    if (reports) progress.step(loss);
    checkpoints.save(step + 1, options.steps);
  }

  // The loss on the held-back text.
  constexpr int64_t kBatches = 4;
  double held_back = 0;
  for (int64_t batch = 0; batch < kBatches; ++batch) {
    const std::vector<int64_t> starts = text.held_back(options.batch, batch, kBatches);
    const executor::StepResult result = executor.eval(batch_of(text, starts, mesh));
    if (has_loss) held_back += mean(result.losses, *copies) / kBatches;
  }
  if (reports) progress.finish(held_back, text.bigram_loss(), recorded);
}

// train(), whose errors outside of a step end all other ranks too.
void train_or_fail(const Options& options, const ir::Program& program, const Text& text,
                   comms::World& world) {
  try {
    train(options, program, text, world);
  } catch (const std::exception& error) {
    if (!world.failures().failed()) world.failures().fail(error.what());
    throw;
  }
}

// Runs all ranks as threads. Rethrows the error of the lowest rank that failed.
void train_threads(const Options& options, const ir::Program& program, const Text& text) {
  std::vector<comms::World> worlds = comms::thread_worlds(options.pp * options.copies());
  std::vector<std::exception_ptr> errors(worlds.size());
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < worlds.size(); ++rank) {
    threads.emplace_back([&, rank] {
      try {
        train_or_fail(options, program, text, worlds[rank]);
      } catch (...) {
        errors[rank] = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
}

void run(const Options& options) {
  check(options);
  const ir::Program program = make_program(options);
  const Text text(options.data, options.model.context);
  const comms::Environment environment = comms::read_environment();
  // Otherwise each rank would start its own pool of threads, as many as there are cores.
  const int ranks = options.pp * options.copies();
  if (ranks > 1) at::set_num_threads(1);
  if (environment.world_size == 1) return train_threads(options, program, text);
  if (environment.world_size != ranks) {
    throw UsageError(times_copies("--pp", options.pp, options) + ": expected " +
                     std::to_string(ranks) + " processes, got " +
                     std::to_string(environment.world_size));
  }
  comms::World world = comms::gloo_world(environment);
  train_or_fail(options, program, text, world);
}

int main(int argc, char** argv) {
  Options options;
  CLI::App app("Trains a small GPT on the bytes of a file, with pipeline and data parallelism.",
               "train_gpt");
  app.footer(
      "Ranks are threads of this process. To run each rank as a process, over Gloo:\n"
      "  pipewright launch -n 4 -- train_gpt --pp 2 --dp-shard 2\n"
      "Exit codes: 0 success, 1 failure, 2 invalid command line.");
  app.option_defaults()->always_capture_default();
  app.add_option("--data", options.data, "File to train on; its last tenth is held back");
  app.add_option("--schedule", options.schedule, "Name of a schedule from `pipewright list`");
  app.add_option("--pp", options.pp, "Ranks per pipeline")->check(CLI::Range(1, 1024));
  app.add_option("--dp-replicate", options.dp_replicate,
                 "Replicas of the pipeline; gradients are averaged over them")
      ->check(CLI::Range(1, 1024));
  app.add_option("--dp-shard", options.dp_shard,
                 "Ranks over which the parameters of each stage are sharded; with --dp-replicate, "
                 "each shard is replicated")
      ->check(CLI::Range(1, 1024));
  const std::map<std::string, at::ScalarType> dtypes = {{"fp32", at::kFloat},
                                                        {"bf16", at::kBFloat16}};
  const auto add_dtype = [&](const std::string& flag, at::ScalarType& dtype,
                             const std::string& help) {
    app.add_option_function<std::string>(
           flag, [&dtypes, &dtype](const std::string& name) { dtype = dtypes.at(name); }, help)
        ->check(CLI::IsMember(dtypes))
        ->default_str("fp32");
  };
  add_dtype("--param-dtype", options.param_dtype,
            "What forward and backward compute in; weights and optimizer stay in fp32");
  add_dtype("--reduce-dtype", options.reduce_dtype,
            "What gradients are accumulated and reduced in");
  app.add_option("--stages-per-rank", options.stages_per_rank,
                 "Stages per rank; 0 for the schedule's default")
      ->check(CLI::Range(0, 1024));
  app.add_option("--microbatches", options.microbatches, "Microbatches per step and replica")
      ->check(CLI::Range(1, 1 << 20));
  app.add_option("--steps", options.steps, "Training steps, with those of a resumed run")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 40));
  app.add_option("--seed", options.model.seed, "Seed of the weights and batches");
  app.add_option("--layers", options.model.layers, "Transformer blocks of the model")
      ->check(CLI::Range(1, 1 << 16));
  app.add_option("--dim", options.model.dim, "Width of the model; a multiple of 16")
      ->check(CLI::Range(1, 1 << 16));
  app.add_option("--context", options.model.context, "Context length in bytes")
      ->check(CLI::Range(1, 1 << 20));
  app.add_option("--batch", options.batch, "Windows per step, over all microbatches and replicas")
      ->check(CLI::Range(1, 1 << 24));
  const CLI::Option* learning_rate =
      app.add_option("--lr", options.learning_rate,
                     "Learning rate of AdamW; a resumed run keeps its own if this is not given")
          ->check(CLI::PositiveNumber);
  app.add_option("--clip", options.clip, "Clip gradients to this total norm; 0: do not clip")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--save", options.checkpoints.save,
                 "Folder for checkpoints: one after the last step, and with --save-every others");
  app.add_option("--save-every", options.checkpoints.every,
                 "Save after each of so many steps; the last two checkpoints are kept")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 40));
  app.add_option("--resume", options.checkpoints.resume,
                 "Checkpoint to go on from, in any mesh and schedule; `latest`: that of --save, or "
                 "from the beginning if there is none");
  app.add_option("--record", options.record,
                 "Write when each action of a step ran, in one pipeline, to a JSON file that "
                 "`pipewright print`, `simulate` and `diff` read");
  app.add_option("--record-step", options.record_step,
                 "The step to record, from 0; -1: the last one")
      ->check(CLI::Range(int64_t{-1}, int64_t{1} << 40));
  app.add_flag("--json", options.json,
               "Print JSON: per step `step`, `loss`, `tokens_per_s`; at the end `held_back_loss`, "
               "`bigram_loss`, and with --record `recorded_step`, `recorded_seconds`, "
               "`bubble_rate`, `predicted_bubble_rate`");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  options.has_learning_rate = learning_rate->count() > 0;
  try {
    run(options);
  } catch (const UsageError& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 2;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    comms::write_error_file(error.what());
    return 1;
  }
  return 0;
}

}  // namespace
}  // namespace pipewright::examples

int main(int argc, char** argv) { return pipewright::examples::main(argc, argv); }
