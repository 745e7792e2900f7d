#include "examples/options.h"

#include <CLI/CLI.hpp>
#include <cmath>
#include <map>
#include <string>
#include <utility>

#include "examples/recorded_step.h"
#include "examples/usage_error.h"

namespace pipewright::examples {
namespace {

// A finite number for which `holds`. (CLI11's ranges accept NaN and print their ends in 300
// digits.)
CLI::Validator number(const std::string& expected, bool (*holds)(double)) {
  return {[=](const std::string& text) {
            double value = 0;
            const bool is_right =
                CLI::detail::lexical_cast(text, value) && std::isfinite(value) && holds(value);
            return is_right ? "" : "expected a number " + expected + ", got `" + text + "`";
          },
          "NUMBER"};
}

}  // namespace

std::variant<Options, int> parse_options(int argc, char** argv) {
  Options options;
  CLI::App app(
      "Trains a small GPT on the bytes of a file, with pipeline, data and tensor parallelism.",
      "train_gpt");
  app.footer(
      "Ranks are threads of this process. To run each rank as a process, over Gloo:\n"
      "  pipewright launch -n 4 -- train_gpt --pp 2 --dp-shard 2\n"
      "Exit codes: 0 success, 1 failure, 2 invalid command line, 3 a step hung, 4 saved and "
      "stopped by SIGUSR1 or SIGTERM.");
  app.option_defaults()->always_capture_default();
  app.add_option("--data", options.data, "File to train on; its last tenth is held back");
  app.add_option("--schedule", options.schedule,
                 "Name of a schedule from `pipewright list`, a file of one, or `search`: measures "
                 "a few steps, tries the best schedules found for their costs, and trains with the "
                 "fastest. Stages that "
                 "a file names in `recompute` store their inputs only, and recompute in backward");
  app.add_option("--search-memory", options.search_memory,
                 "With --schedule search, live activations per rank, each of one microbatch on all "
                 "stages of the rank; 0: as many as fit into the memory of the hosts that is left")
      ->check(CLI::Range(0.0, 1e6));
  app.add_option("--pp", options.pp, "Ranks per pipeline")->check(CLI::Range(1, 1024));
  app.add_option("--dp-replicate", options.dp_replicate,
                 "Replicas of the pipeline; gradients are averaged over them")
      ->check(CLI::Range(1, 1024));
  app.add_option("--dp-shard", options.dp_shard,
                 "Ranks over which the parameters of each stage are sharded; with --dp-replicate, "
                 "each shard is replicated")
      ->check(CLI::Range(1, 1024));
  app.add_option("--tp", options.tp,
                 "Ranks over which each layer is split: attention heads, MLPs, vocabulary")
      ->check(CLI::Range(1, 1024));
  app.add_flag("--sequence-parallel", options.sequence_parallel,
               "Split the activations between layers along the context; needs --tp of at least 2");
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
                 "Stages per rank; 0 for the schedule's default, or with --schedule search 1 or 2")
      ->check(CLI::Range(0, 1024));
  app.add_option("--microbatches", options.microbatches, "Microbatches per step and replica")
      ->check(CLI::Range(1, 1 << 20));
  app.add_option(
         "--slices", options.slices,
         "Parts that each microbatch is cut into along the context, which then need the memory "
         "of fewer tokens: for GPipe, Seq1F1B and Seq1F1B-I; default: 1, or those of a file")
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
  const std::map<std::string, NormKind> norms = {{"layer", NormKind::kLayer},
                                                 {"rms", NormKind::kRms}};
  app.add_option_function<std::string>(
         "--norm", [&](const std::string& name) { options.model.norm = norms.at(name); },
         "LayerNorm or RMSNorm")
      ->check(CLI::IsMember(norms))
      ->default_str("layer");
  app.add_flag("--rope", options.model.rope,
               "Rotary position embedding, instead of one that is learned");
  const std::map<std::string, Checkpointing> checkpointing = {
      {"full", Checkpointing::kFull}, {"selective", Checkpointing::kSelective}};
  app.add_option_function<std::string>(
         "--activation-checkpointing",
         [&](const std::string& name) {
           options.model.activation_checkpointing = checkpointing.at(name);
         },
         "Store only the inputs of each block, of all stages, and recompute it in backward; with "
         "`selective` store the results of matrix products and attention too, and recompute the "
         "rest; not with a file that names stages that recompute")
      ->check(CLI::IsMember(checkpointing))
      ->expected(0, 1)
      ->default_str("full");
  const std::map<std::string, Balance> balances = {{"estimated", Balance::kEstimated},
                                                   {"measured", Balance::kMeasured}};
  app.add_option_function<std::string>(
         "--balance", [&](const std::string& name) { options.balance = balances.at(name); },
         "Distribute blocks over stages so that the stages cost the same, with embedding and "
         "output layer, by costs that are estimated, unless `measured` follows; without the flag "
         "as many blocks each")
      ->check(CLI::IsMember(balances))
      ->expected(0, 1)
      ->default_str("estimated");
  app.add_flag("--tie", options.model.tie,
               "The output layer has the weights of the token embedding, across stages too");
  app.add_option("--batch", options.batch,
                 "Windows per step, over all microbatches and replicas, as equal as possible")
      ->check(CLI::Range(1, 1 << 24));
  const CLI::Option* learning_rate =
      app.add_option("--lr", options.learning_rate,
                     "Learning rate of AdamW; a resumed run keeps its own if this is not given")
          ->check(number("above 0", [](double value) { return value > 0; }));
  app.add_option("--warmup", options.learning_rate_plan.warmup,
                 "Steps in which the learning rate grows to its full value")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 40));
  app.add_flag("--cosine", options.learning_rate_plan.cosine,
               "After the warm-up, lower the learning rate to a tenth, along half a cosine to the "
               "last step");
  app.add_option("--clip", options.clip, "Clip gradients to this total norm; 0: do not clip")
      ->check(number("from 0", [](double value) { return value >= 0; }));
  app.add_option(
      "--save", options.checkpoints.save,
      "Folder for checkpoints: one after the last step, and with --save-every others; SIGUSR1 "
      "and SIGTERM then save and stop");
  app.add_option("--save-every", options.checkpoints.every,
                 "Save after each of so many steps; the last two checkpoints are kept")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 40));
  app.add_option("--resume", options.checkpoints.resume,
                 "Checkpoint to go on from, in any mesh and schedule; `latest`: that of --save, or "
                 "from the beginning if there is none");
  app.add_option("--device", options.device,
                 "cpu, or cuda: one GPU per process, over NCCL, or one for all ranks as threads")
      ->check(CLI::IsMember({"cpu", "cuda"}));
  app.add_option("--timeout", options.timeout,
                 "Seconds that a rank waits for another one before it reports a hang")
      ->check(CLI::Range(0.1, 1e6));
  app.add_option("--first-timeout", options.first_timeout,
                 "The same for the first step; 0: that of --timeout")
      ->check(CLI::Range(0.0, 1e6));
  app.add_option("--profile", options.profile,
                 "Before training, measure a few steps and write what the actions of the schedule "
                 "cost, to a file for --costs of `pipewright simulate` and `search`");
  app.add_option("--record", options.record,
                 "Write when each action of a step ran, in one pipeline, to a JSON file that "
                 "`pipewright print`, `simulate` and `diff` read");
  app.add_option("--record-step", options.record_step,
                 "The step to record, from 0; -1: the last one")
      ->check(CLI::Range(int64_t{-1}, int64_t{1} << 40));
  app.add_option(
      "--metrics", options.metrics,
      "File to which one JSON object per step is appended: loss, gradient norm, learning "
      "rate, speed, bubble, memory");
  app.add_option("--tensorboard", options.tensorboard,
                 "Folder for an event file with the same, which `tensorboard --logdir` draws");
  app.add_option("--sample", options.sample,
                 "Text that the model of --resume continues, on any mesh, instead of training");
  app.add_flag(
      "--json", options.json,
      "Print JSON: per step `step`, `loss`, `grad_norm`, `tokens_per_s`; at the end "
      "`held_back_loss`, `bigram_loss`, and with --record `recorded_step`, `recorded_seconds`, "
      "`bubble_rate`, `predicted_bubble_rate`");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  options.has_learning_rate = learning_rate->count() > 0;
  return options;
}

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
  if (options.batch < int64_t{options.microbatches} * options.copies()) {
    throw UsageError("--batch: expected at least " +
                     times_copies("--microbatches", options.microbatches, options) + ", got " +
                     std::to_string(options.batch));
  }
  const int64_t dim = options.model.dim, heads = dim / kHeadDim;
  if (dim % kHeadDim != 0) {
    throw UsageError("--dim: expected a multiple of the head dimension " +
                     std::to_string(kHeadDim) + ", got " + std::to_string(dim));
  }
  if (heads % options.tp != 0) {
    throw UsageError("--tp: expected a divisor of " + std::to_string(heads) +
                     ", the attention heads of --dim " + std::to_string(dim) + ", got " +
                     std::to_string(options.tp));
  }
  if (options.sequence_parallel && options.tp == 1)
    throw UsageError("--sequence-parallel: expected --tp of at least 2, got 1");
  if (options.sequence_parallel && options.model.context % options.tp != 0) {
    throw UsageError("--context: expected a multiple of --tp " + std::to_string(options.tp) +
                     " with --sequence-parallel, got " + std::to_string(options.model.context));
  }
  check(options.checkpoints);
  if (!options.sample.empty() && options.checkpoints.resume.empty())
    throw UsageError("--sample: expected --resume too");
  if (!options.sample.empty() && !options.profile.empty())
    throw UsageError("--profile: expected no --sample, which trains nothing");
  if (!options.sample.empty() && options.json)
    throw UsageError("--sample: expected no --json, which has no text");
  if (options.record_step >= 0 && options.record.empty())
    throw UsageError("--record-step requires --record");
  if (options.record_step >= options.steps) {
    throw UsageError("--record-step: expected a step below --steps " +
                     std::to_string(options.steps) + ", got " +
                     std::to_string(options.record_step));
  }
  if (options.search_memory > 0 && !options.searches())
    throw UsageError("--search-memory requires --schedule search");
  if (options.searches() && options.slices > 1)
    throw UsageError("--schedule search: expected no --slices, got " +
                     std::to_string(options.slices));
  if (options.searches() && options.device != "cpu")
    throw UsageError("--schedule search: expected --device cpu, got " + options.device);
  if (options.balance == Balance::kMeasured && options.device != "cpu")
    throw UsageError("--balance measured: expected --device cpu, got " + options.device);
  if (!options.profile.empty() && options.device != "cpu")
    throw UsageError("--profile: expected --device cpu, got " + options.device);
  for (const std::string& file : {options.record, options.profile}) {
    if (!file.empty()) check_writable(file);
  }
}

}  // namespace pipewright::examples
