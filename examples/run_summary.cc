#include "examples/run_summary.h"

#include <cstdio>
#include <vector>

#include "examples/batch.h"
#include "examples/gpt.h"
#include "examples/program.h"
#include "pipewright/comms/store_rounds.h"
#include "pipewright/schedule/compile/compile.h"

namespace pipewright::examples {
namespace {

std::string with_decimals(double number, int decimals) {
  char text[64];
  std::snprintf(text, sizeof text, "%.*f", decimals, number);
  return text;
}

// "pp 2 x dp-shard 2"
std::string mesh_text(const Options& options) {
  std::string text = "pp " + std::to_string(options.pp);
  const auto add = [&](const char* dim, int size) {
    if (size > 1) text += std::string(" x ") + dim + " " + std::to_string(size);
  };
  add("dp-replicate", options.dp_replicate);
  add("dp-shard", options.dp_shard);
  add("tp", options.tp);
  return text;
}

std::string rank_text(const Options& options, const LocalModel& model, int num_stages) {
  const schedule::Cut blocks = blocks_of_stages(options.model, num_stages);
  std::string text;
  for (const auto& [stage, local] : model.stages) {
    const int count = blocks[static_cast<size_t>(stage)];
    text += (text.empty() ? "stage " : ", stage ") + std::to_string(stage) + " (";
    if (stage == 0) text += "embedding, ";
    text += std::to_string(count) + (count == 1 ? " block" : " blocks");
    text += stage == num_stages - 1 ? ", output)" : ")";
  }
  size_t bytes = 0;
  for (const at::Tensor& parameter : model.parameters) bytes += parameter.nbytes();
  constexpr double kCopies = 4;  // weight, gradient, and AdamW's two moments
  return text + "; " + with_decimals(kCopies * static_cast<double>(bytes) / (1 << 20), 2) + " MiB";
}

// Of a schedule whose F, I and W all take equally long, without communication and copies.
double predicted_bubble(const ir::Program& program) {
  const auto compiled = schedule::compile({.source = ir::AnySchedule(program)});
  return schedule::simulate(compiled, {.with_copies = false}).simulation->report.bubble_rate;
}

}  // namespace

std::string summary_of(const Options& options, const ir::Program& program, const LocalModel& model,
                       const comms::Mesh& mesh, comms::World& world) {
  const int stages = program.placement.num_stages();
  const bool is_shown = in_first_copy(mesh) && mesh.coordinate("tp") == 0;
  comms::StoreExchange exchange(world, "summary");
  const std::vector<std::string> ranks =
      exchange(is_shown ? rank_text(options, model, stages) : "");
  std::string text = "model:    " + std::to_string(options.model.layers) + " blocks of width " +
                     std::to_string(options.model.dim) + ", context " +
                     std::to_string(options.model.context) + "; " + std::to_string(options.batch) +
                     " windows per step\n";
  text += "mesh:     " + mesh_text(options) + "\n";
  text += "schedule: " + (program.name.empty() ? options.schedule : program.name) + ", " +
          std::to_string(stages) + " stages, " + std::to_string(options.microbatches) +
          " microbatches" +
          (program.slices > 1 ? " of " + std::to_string(program.slices) + " slices" : "") +
          "; bubble " + with_decimals(100 * predicted_bubble(program), 1) +
          "% if F, I and W take equally long";
  if (!program.recompute.empty()) text += "; recomputes " + stages_text(program.recompute);
  if (!program.offload.empty()) text += "; offloads " + stages_text(program.offload);
  text += '\n';
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    if (!ranks[rank].empty())
      text += "rank " + std::to_string(rank) + ":   " + ranks[rank] +
              " of weights, gradients and optimizer state\n";
  }
  text.pop_back();
  return text;
}

}  // namespace pipewright::examples
