#include "examples/program.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <numeric>
#include <optional>
#include <stdexcept>
#include <utility>
#include <variant>

#include "examples/usage_error.h"
#include "pipewright/ir/diagnostic.h"
#include "pipewright/ir/text/render.h"
#include "pipewright/schedule/compile/compile.h"
#include "pipewright/schedules/registry.h"

namespace pipewright::examples {
namespace {

// The file that --schedule names; nullopt if it is a name of the catalogue, or no file.
std::optional<ir::Source> file_of(const std::string& schedule) {
  if (schedules::find_schedule(schedule) || !std::filesystem::exists(schedule)) return std::nullopt;
  std::ifstream file(schedule, std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  if (!file.is_open() || file.bad()) throw std::runtime_error("cannot read `" + schedule + "`");
  return ir::Source{schedule, std::move(text)};
}

[[noreturn]] void refuse(const ir::Diagnostics& diagnostics, const ir::Source* file) {
  if (file) {
    std::string text = ir::render(diagnostics, file, {});
    while (text.ends_with('\n')) text.pop_back();
    throw UsageError("--schedule:\n" + text);
  }
  const ir::Diagnostic& error = diagnostics.kept().front();
  throw UsageError("--schedule: " + error.message + (error.help.empty() ? "" : "; " + error.help));
}

}  // namespace

std::string stages_text(const std::vector<int>& stages) {
  std::string text;
  for (const int stage : stages) text += (text.empty() ? "" : ", ") + std::to_string(stage);
  return (stages.size() == 1 ? "stage " : "stages ") + text;
}

ir::Program make_program(const Options& options) {
  const std::optional<ir::Source> file = file_of(options.schedule);
  schedule::CompileRequest request = {.shape = {.ranks = options.pp,
                                                .stages = options.pp * options.stages_per_rank,
                                                .microbatches = options.microbatches,
                                                .slices = options.slices}};
  if (file)
    request.source = &*file;
  else
    request.source = options.schedule;
  schedule::CompileResult result = schedule::compile(std::move(request));
  if (!result.ok()) refuse(result.diagnostics, file ? &*file : nullptr);
  ir::Program program = std::get<ir::Program>(std::move(*result.schedule));
  const int64_t slice = options.model.context / program.slices;
  if (options.model.context % program.slices != 0 ||
      (options.sequence_parallel && slice % options.tp != 0))
    throw UsageError("--context: expected a multiple of " + std::to_string(program.slices) +
                     " slices" +
                     (options.sequence_parallel
                          ? " of a multiple of --tp " + std::to_string(options.tp) + " tokens"
                          : "") +
                     ", got " + std::to_string(options.model.context));
  if (!options.profile.empty() && program.slices > 1)
    throw UsageError("--profile: expected whole microbatches, got " +
                     std::to_string(program.slices) + " slices of each");
  if (options.model.activation_checkpointing != Checkpointing::kNone && !program.recompute.empty())
    throw UsageError(
        "--activation-checkpointing: expected a schedule without stages that "
        "recompute, got " +
        stages_text(program.recompute) + "; leave out the flag, and only these do");
  if (program.cut.empty()) return program;
  const int64_t layers = std::accumulate(program.cut.begin(), program.cut.end(), int64_t{0});
  if (const int64_t blocks = options.model.layers; layers != blocks && layers != blocks + 2)
    throw UsageError("--schedule: expected a cut of " + std::to_string(blocks) +
                     " blocks, or of these between embedding and output layer, got one of " +
                     std::to_string(layers) + " layers");
  if (options.balance != Balance::kCount)
    throw UsageError("--balance: expected a schedule without a cut, got one with " +
                     std::to_string(layers) + " layers");
  return program;
}

schedule::Cut blocks_of(const ir::Program& program, int64_t num_blocks) {
  schedule::Cut blocks = program.cut;
  const int64_t layers = std::accumulate(blocks.begin(), blocks.end(), int64_t{0});
  if (layers <= num_blocks) return blocks;
  const auto has_layers = [](int count) { return count > 0; };
  --*std::find_if(blocks.begin(), blocks.end(), has_layers);
  --*std::find_if(blocks.rbegin(), blocks.rend(), has_layers);
  return blocks;
}

}  // namespace pipewright::examples
