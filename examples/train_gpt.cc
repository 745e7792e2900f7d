// Trains a small GPT on the bytes of a text, cut into pipeline stages: train_gpt --help.
//
// Ranks are threads of this process; under `pipewright launch` or torchrun they are its processes,
// and talk over Gloo. The same seed gives the same weights and batches either way.
#include <ATen/Parallel.h>
#include <torch/optim/adamw.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <thread>

#include "examples/gpt.h"
#include "examples/progress.h"
#include "examples/text.h"
#include "pipewright/comms/gloo.h"
#include "pipewright/comms/mesh.h"
#include "pipewright/comms/threads.h"
#include "pipewright/ddp/replicate.h"
#include "pipewright/executor/executor.h"
#include "pipewright/executor/module_stage.h"
#include "pipewright/fsdp/fully_shard.h"
#include "pipewright/schedule/compile.h"

namespace pipewright::examples {
namespace {

struct Options {
  std::string data = "/usr/share/common-licenses/GPL-3";
  std::string schedule = "1F1B";
  int pp = 2;
  int dp_replicate = 1;
  int dp_shard = 1;
  int stages_per_rank = 0;  // 0: the schedule's own
  int microbatches = 4;
  int64_t steps = 200;
  int64_t batch = 16;
  double learning_rate = 3e-3;
  bool json = false;
  GptConfig model;

  // Ranks that train the same stages on other data.
  int copies() const { return dp_replicate * dp_shard; }
};

// What was asked for and cannot be.
class UsageError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
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

std::string name_of_copies(const Options& options) {
  return options.dp_shard > 1 ? "--dp-shard" : "--dp-replicate";
}

void check(const Options& options) {
  if (options.dp_replicate > 1 && options.dp_shard > 1) {
    throw UsageError("--dp-replicate " + std::to_string(options.dp_replicate) + " and --dp-shard " +
                     std::to_string(options.dp_shard) + ": wanted 1 for one of them");
  }
  if (options.batch % (options.microbatches * options.copies()) != 0) {
    throw UsageError("--batch " + std::to_string(options.batch) +
                     " is not a multiple of --microbatches " +
                     std::to_string(options.microbatches) + " times " + name_of_copies(options) +
                     " " + std::to_string(options.copies()));
  }
  if (options.model.dim % kHeadDim != 0) {
    throw UsageError("--dim " + std::to_string(options.model.dim) + " is not a multiple of " +
                     std::to_string(kHeadDim) + ", the size of a head");
  }
}

// One of `parts` of a batch: inputs and targets, [windows, context].
executor::Batch batch_of(const Text& text, const std::vector<int64_t>& starts, int part,
                         int parts) {
  std::vector<at::Tensor> inputs, targets;
  const size_t size = starts.size() / static_cast<size_t>(parts);
  for (size_t i = 0; i < size; ++i) {
    const auto [input, target] = text.window(starts[size * static_cast<size_t>(part) + i]);
    inputs.push_back(torch::tensor(input));
    targets.push_back(torch::tensor(target));
  }
  return {{at::stack(inputs)}, {}, {at::stack(targets)}};
}

// A group for each block, and one for what else the stage has.
std::shared_ptr<modules::DataParallel> shard(GptStage& stage, const comms::BackendPtr& group) {
  std::vector<std::shared_ptr<fsdp::Sharded>> units;
  for (const auto& block : stage.blocks()) units.push_back(fsdp::fully_shard(*block, group));
  return fsdp::fully_shard(stage, group)->data_parallel();
}

// Over the microbatches, and over the ranks of a group.
double mean(const std::vector<at::Tensor>& losses, c10d::Backend* group) {
  std::vector<at::Tensor> sum = {at::zeros({}, at::kDouble)};
  for (const at::Tensor& loss : losses) sum[0] += loss;
  if (group->getSize() > 1) group->allreduce(sum)->wait();
  return sum[0].item<double>() / static_cast<double>(losses.size()) / group->getSize();
}

void train(const Options& options, const ir::Program& program, const Text& text,
           comms::World& world) {
  comms::Mesh mesh(world, {{"pp", options.pp}, {"dp", options.copies()}});
  const comms::BackendPtr copies = mesh.group({"dp"});
  const int copy = mesh.coordinate("dp");
  const int num_stages = program.placement.num_stages();
  std::map<int, executor::LocalStage> stages;
  std::vector<at::Tensor> weights;
  for (const int index : program.placement.stages_of(mesh.coordinate("pp"))) {
    const auto stage = make_gpt_stage(options.model, index, num_stages);
    stages[index].stage = executor::make_stage(stage);
    stages[index].data_parallel = options.dp_shard > 1
                                      ? shard(*stage, copies)
                                      : ddp::replicate(*stage, copies)->data_parallel();
    for (const at::Tensor& weight : stage->parameters()) weights.push_back(weight);
  }
  const bool has_loss = stages.contains(num_stages - 1);
  const bool reports = has_loss && copy == 0;
  executor::Executor executor(
      program, std::move(stages), world,
      {.loss = [](const executor::Tensors& outputs,
                  const executor::Tensors& targets) { return gpt_loss(outputs[0], targets[0]); },
       .ranks = mesh.ranks({"pp"})});
  torch::optim::AdamW optimizer(weights, torch::optim::AdamWOptions(options.learning_rate));
  const Progress::Style style = options.json                 ? Progress::Style::kJson
                                : isatty(STDOUT_FILENO) != 0 ? Progress::Style::kBar
                                                             : Progress::Style::kLines;
  Progress progress(style, options.steps, options.batch * options.model.context);
  for (int64_t step = 0; step < options.steps; ++step) {
    optimizer.zero_grad();
    const executor::StepResult result = executor.step(batch_of(
        text, text.batch(options.model.seed, step, options.batch), copy, options.copies()));
    if (!weights.empty()) optimizer.step();
    const double loss = has_loss ? mean(result.losses, copies.get()) : 0;
    if (reports) progress.step(loss);
  }
  constexpr int64_t kParts = 4;
  double held_back = 0;
  for (int64_t part = 0; part < kParts; ++part) {
    const executor::StepResult result = executor.eval(
        batch_of(text, text.held_back(options.batch, part, kParts), copy, options.copies()));
    if (has_loss) held_back += mean(result.losses, copies.get()) / kParts;
  }
  if (reports) progress.finish(held_back, text.bigram_loss());
}

// Each rank on a thread. Throws what the first rank threw that failed.
void train_threads(const Options& options, const ir::Program& program, const Text& text) {
  std::vector<comms::World> worlds = comms::thread_worlds(options.pp * options.copies());
  std::vector<std::exception_ptr> errors(worlds.size());
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < worlds.size(); ++rank) {
    threads.emplace_back([&, rank] {
      try {
        train(options, program, text, worlds[rank]);
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
  // A pool of threads for each rank would leave none for the others.
  const int ranks = options.pp * options.copies();
  if (ranks > 1) at::set_num_threads(1);
  if (environment.world_size == 1) return train_threads(options, program, text);
  if (environment.world_size != ranks) {
    throw UsageError("--pp " + std::to_string(options.pp) + " times " + name_of_copies(options) +
                     " " + std::to_string(options.copies()) +
                     " want as many processes, and there are " +
                     std::to_string(environment.world_size));
  }
  comms::World world = comms::gloo_world(environment);
  train(options, program, text, world);
}

int main(int argc, char** argv) {
  Options options;
  CLI::App app("Trains a small GPT on the bytes of a text, cut into pipeline stages.", "train_gpt");
  app.option_defaults()->always_capture_default();
  app.add_option("--data", options.data, "a file; its last tenth is held back");
  app.add_option("--schedule", options.schedule, "as `pipewright list` names them");
  app.add_option("--pp", options.pp, "ranks of the pipeline")->check(CLI::Range(1, 1024));
  app.add_option("--dp-replicate", options.dp_replicate, "copies of the pipeline")
      ->check(CLI::Range(1, 1024));
  app.add_option("--dp-shard", options.dp_shard, "ranks over which each stage is sharded")
      ->check(CLI::Range(1, 1024));
  app.add_option("--stages-per-rank", options.stages_per_rank, "0: the schedule's own")
      ->check(CLI::Range(0, 1024));
  app.add_option("--microbatches", options.microbatches)->check(CLI::Range(1, 1 << 20));
  app.add_option("--steps", options.steps)->check(CLI::Range(int64_t{1}, int64_t{1} << 40));
  app.add_option("--seed", options.model.seed, "of weights and batches");
  app.add_option("--layers", options.model.layers)->check(CLI::Range(1, 1 << 16));
  app.add_option("--dim", options.model.dim)->check(CLI::Range(1, 1 << 16));
  app.add_option("--context", options.model.context, "bytes")->check(CLI::Range(1, 1 << 20));
  app.add_option("--batch", options.batch, "windows a step, over all microbatches")
      ->check(CLI::Range(1, 1 << 24));
  app.add_option("--lr", options.learning_rate, "of AdamW")->check(CLI::PositiveNumber);
  app.add_flag("--json", options.json, "one object a step: step, loss, tokens_per_s");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  try {
    run(options);
  } catch (const UsageError& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 2;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 1;
  }
  return 0;
}

}  // namespace
}  // namespace pipewright::examples

int main(int argc, char** argv) { return pipewright::examples::main(argc, argv); }
