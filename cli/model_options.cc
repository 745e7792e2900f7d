#include "pipewright/cli/model_options.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <stdexcept>
#include <string>

#include "pipewright/cli/files.h"
#include "pipewright/cli/input.h"
#include "pipewright/ir/printable.h"
#include "pipewright/schedule/model/config_json.h"

namespace pipewright::cli {
namespace {

using schedule::Machine;
using schedule::ModelShape;

// The shape of a model as flags, in place of a config.json: a decoder with gated feed-forwards.
struct ShapeOption {
  std::string_view name, help;
  int64_t ModelShape::*field;
};
constexpr ShapeOption kShapeOptions[] = {
    {"--hidden-size", "size of a token's vector", &ModelShape::hidden},
    {"--heads", "attention heads", &ModelShape::heads},
    {"--kv-heads", "heads of keys and values; default: --heads", &ModelShape::kv_heads},
    {"--ffn-size", "inner size of a feed-forward; default: 4 times --hidden-size",
     &ModelShape::ffn},
    {"--vocabulary", "tokens", &ModelShape::vocabulary},
};

// Numbers of the machine that replace those of --gpu.
struct MachineOption {
  std::string_view name, help;
  double Machine::*field;
  double unit;
};
constexpr MachineOption kMachineOptions[] = {
    {"--peak", "TFLOP/s of dense 16-bit products", &Machine::peak, 1e12},
    {"--achieved", "part of the peak that products reach; default: 0.75", &Machine::achieved, 1},
    {"--gpu-memory", "GB of memory", &Machine::memory, 1e9},
    {"--gpu-memory-bandwidth", "GB/s", &Machine::memory_bandwidth, 1e9},
    {"--nvlink", "GB/s between GPUs of a node, per direction", &Machine::nvlink_bandwidth, 1e9},
    {"--network", "GB/s between nodes, per GPU and direction", &Machine::network_bandwidth, 1e9},
    {"--pcie", "GB/s between a GPU and its host, per direction", &Machine::host_bandwidth, 1e9},
    {"--nvlink-latency", "microseconds", &Machine::nvlink_latency, 1e-6},
    {"--network-latency", "microseconds", &Machine::network_latency, 1e-6},
};

ModelShape shape_of(const Invocation& invocation, Console& console) {
  if (const auto path = invocation.text("--model")) {
    for (const ShapeOption& option : kShapeOptions) {
      if (invocation.has(std::string(option.name)))
        throw UsageError(fmt::format("--model cannot be used with {}", option.name));
    }
    const ir::Source file = read_source(*path, console);
    try {
      return schedule::parse_config(file.text);
    } catch (const std::invalid_argument& error) {
      throw UsageError(fmt::format("--model {}: {}", ir::printable(file.name), error.what()));
    }
  }
  ModelShape model{.architecture = "decoder"};
  for (const ShapeOption& option : kShapeOptions)
    model.*option.field = invocation.number(std::string(option.name)).value_or(0);
  model.layers = invocation.number("--blocks").value_or(0);
  if (model.kv_heads == 0) model.kv_heads = model.heads;
  if (model.ffn == 0) model.ffn = 4 * model.hidden;
  std::string missing;
  const auto require = [&](const char* option, int64_t value) {
    if (value == 0) missing.append(missing.empty() ? "" : ", ").append(option);
  };
  require("--blocks", model.layers);
  require("--hidden-size", model.hidden);
  require("--heads", model.heads);
  require("--vocabulary", model.vocabulary);
  if (!missing.empty())
    throw UsageError(fmt::format("expected --model config.json, or a shape; it lacks {}", missing));
  model.head_size = model.hidden / model.heads;
  return model;
}

}  // namespace

std::vector<OptionSpec> model_options() {
  std::vector<OptionSpec> options = {
      file_option("--model", "FILE",
                  "config.json of Hugging Face's transformers: llama, mistral, qwen2, qwen3, "
                  "mixtral, qwen2_moe, qwen3_moe, deepseek_v2, deepseek_v3, gpt2; or a shape:"),
      number_option("--blocks", "N", "blocks of the model")};
  for (const ShapeOption& option : kShapeOptions)
    options.push_back(number_option(option.name, "N", option.help));
  std::vector<OptionSpec> rest = {
      number_option("--seq", "N", "tokens per sequence; required"),
      choice_option("--attention", "HOW", {"flash", "selective", "materialized"},
                    "whether the scores of attention are never in memory, computed again in the "
                    "backward, or kept; default: flash"),
      choice_option("--shard", "WHAT", {"none", "optimizer", "all"},
                    "what data-parallel ranks share: nothing (DDP), the optimizer's state (ZeRO-1) "
                    "or parameters and gradients too (FSDP); default: optimizer"),
      text_option("--gradient-bytes", "N", "per parameter; default: 4"),
      text_option("--optimizer-bytes", "N",
                  "per parameter: master weights and moments; default: 12"),
      choice_option("--gpu", "GPU", schedule::gpu_names(),
                    "the machine (schedule/model/gpus.def); required. Its numbers, to replace:"),
      number_option("--gpus-per-node", "N", "GPUs that NVLink connects"),
  };
  for (const MachineOption& option : kMachineOptions)
    rest.push_back(text_option(option.name, "X", option.help));
  options.insert(options.end(), rest.begin(), rest.end());
  return options;
}

AskedModel read_model(const Invocation& invocation, Console& console) {
  AskedModel asked{.model = shape_of(invocation, console), .training = {}, .machine = {}};
  const auto gpu = invocation.text("--gpu");
  if (!gpu)
    throw UsageError(
        fmt::format("expected --gpu, one of {}", fmt::join(schedule::gpu_names(), ", ")));
  asked.machine = *schedule::find_gpu(*gpu);
  for (const MachineOption& option : kMachineOptions) {
    const std::string name(option.name);
    if (const auto text = invocation.text(name))
      asked.machine.*option.field = option.unit * positive_number(name, *text);
  }
  if (asked.machine.achieved > 1)
    throw wrong_value("--achieved", "a number above 0, up to 1", *invocation.text("--achieved"));
  asked.machine.gpus_per_node =
      invocation.number("--gpus-per-node").value_or(asked.machine.gpus_per_node);
  schedule::TrainingShape& training = asked.training;
  if (!invocation.has("--seq")) throw UsageError("expected --seq, the tokens per sequence");
  training.sequence = *invocation.number("--seq");
  const std::string attention = invocation.text("--attention").value_or("flash");
  training.attention = attention == "flash"       ? schedule::Attention::kFlash
                       : attention == "selective" ? schedule::Attention::kSelective
                                                  : schedule::Attention::kMaterialized;
  const std::string shard = invocation.text("--shard").value_or("optimizer");
  training.shard = shard == "none"  ? schedule::Shard::kNone
                   : shard == "all" ? schedule::Shard::kAll
                                    : schedule::Shard::kOptimizer;
  if (const auto text = invocation.text("--gradient-bytes"))
    training.gradient_bytes = positive_number("--gradient-bytes", *text);
  if (const auto text = invocation.text("--optimizer-bytes"))
    training.optimizer_bytes = positive_number("--optimizer-bytes", *text);
  return asked;
}

std::string model_text(const AskedModel& asked) {
  return fmt::format("{}, {} blocks, {:.3g}e9 parameters; {}: {:.4g} TFLOP/s at {:.3g}%, {:.4g} GB",
                     asked.model.architecture, asked.model.layers,
                     static_cast<double>(asked.model.parameters()) / 1e9, asked.machine.name,
                     asked.machine.peak / 1e12, 100 * asked.machine.achieved,
                     asked.machine.memory / 1e9);
}

}  // namespace pipewright::cli
