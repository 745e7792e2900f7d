#include "pipewright/checkpoint/load.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <tuple>
#include <utility>

#include "pipewright/checkpoint/durable_file.h"
#include "pipewright/checkpoint/folder.h"
#include "pipewright/checkpoint/read_plan.h"
#include "pipewright/checkpoint/save.h"
#include "pipewright/ir/printable.h"
#include "pipewright/ir/text/render.h"

namespace pipewright::checkpoint {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr size_t kShownErrors = 20;

std::string text_of(const ir::Diagnostics& diagnostics, const ir::Source* source) {
  std::string text = ir::render(diagnostics, source, {.max_errors = kShownErrors});
  while (text.ends_with('\n')) text.pop_back();
  return text;
}

std::string text_of(const CheckpointReport& report) {
  std::string text;
  for (const FileReport& file : report.files)
    text += (text.empty() ? "" : "\n") + text_of(file.diagnostics, &file.text);
  return text;
}

std::string cannot_load(const fs::path& path, const std::string& why) {
  return fmt::format("cannot load `{}`:\n{}", ir::printable(path.native()), why);
}

StoredCheckpoint open(const fs::path& path) {
  CheckpointReport report;
  auto checkpoint = StoredCheckpoint::open(path, &report);
  if (!checkpoint) throw std::runtime_error(cannot_load(path, text_of(report)));
  return *std::move(checkpoint);
}

StoredCheckpoint open_structure(const fs::path& path, const Exchange& exchange) {
  std::optional<StoredCheckpoint> checkpoint;
  agree(exchange, [&]() -> std::string {
    checkpoint.emplace(open(path));
    return "";
  });
  return *std::move(checkpoint);
}

// The files whose data are damaged, on all ranks alike; empty if none is.
std::string damage_on_all(const StoredCheckpoint& checkpoint, int rank, const Exchange& exchange) {
  const size_t ranks = exchange("").size();
  std::string damage;
  for (const std::string& found : agree(exchange, [&] {
         CheckpointReport report;
         checkpoint.verify(&report, nullptr, static_cast<size_t>(rank), ranks);
         return text_of(report);
       }))
    damage += (damage.empty() || found.empty() ? "" : "\n") + found;
  return damage;
}

// The tensors that this rank has places for, once each, as JSON.
std::string specs_of(std::span<const TensorPlace> places) {
  std::map<std::string_view, const TensorPlace*> by_name;
  for (const TensorPlace& place : places) by_name.emplace(place.name, &place);
  Json specs = Json::array();
  for (const auto& [tensor, place] : by_name)
    specs.push_back({{"name", tensor}, {"dtype", name(place->dtype)}, {"shape", place->shape}});
  return specs.dump();
}

}  // namespace

StoredCheckpoint open_on_all(const fs::path& path, int rank, const Exchange& exchange,
                             Verify verify) {
  StoredCheckpoint checkpoint = open_structure(path, exchange);
  if (verify == Verify::kStructure) return checkpoint;
  const std::string damage = damage_on_all(checkpoint, rank, exchange);
  if (!damage.empty()) throw AgreedError(cannot_load(path, damage));
  return checkpoint;
}

std::optional<LatestCheckpoint> open_latest_on_all(
    const fs::path& folder, int rank, const Exchange& exchange,
    const std::function<void(const std::string& text)>& warn, Verify verify) {
  // Rank 0 proposes one after the other, until all ranks find one whole.
  std::optional<std::vector<FolderEntry>> listed;
  std::string wrong;  // with those that were tried
  const auto propose = [&]() -> std::string {
    if (rank != 0 || !fs::exists(folder)) return "";
    if (!listed) listed = newest_checkpoints(folder);
    std::vector<FolderEntry>& untried = *listed;
    for (; !untried.empty(); untried.erase(untried.begin())) {
      CheckpointReport report;
      if (StoredCheckpoint::open(untried[0].path, &report))
        return untried[0].path.filename().native();
      wrong += (wrong.empty() ? "" : "\n") + text_of(report);
    }
    if (wrong.empty()) return "";
    throw std::runtime_error(
        fmt::format("no checkpoint in `{}` is whole:\n{}", ir::printable(folder.native()), wrong));
  };
  while (true) {
    const std::string name = agree(exchange, propose)[0];
    if (name.empty()) return std::nullopt;
    StoredCheckpoint checkpoint = open_structure(folder / name, exchange);
    const std::string damage =
        verify == Verify::kData ? damage_on_all(checkpoint, rank, exchange) : "";
    if (damage.empty()) {
      if (!wrong.empty()) warn(wrong);
      return LatestCheckpoint{folder / name, std::move(checkpoint)};
    }
    if (rank != 0) continue;
    wrong += (wrong.empty() ? "" : "\n") + damage;
    listed->erase(listed->begin());
  }
}

void load(const StoredCheckpoint& checkpoint, std::span<const TensorPlace> places,
          const std::function<bool(const std::string& name)>& is_ignored,
          const Exchange& exchange) {
  const std::vector<std::string> all = agree(exchange, [&] { return specs_of(places); });
  std::vector<TensorSpec> expected;
  for (const std::string& specs : all) {
    for (const Json& spec : Json::parse(specs))
      expected.push_back(
          {spec.at("name"), *parse_dtype(spec.at("dtype").get<std::string>()), spec.at("shape")});
  }
  const auto key = [](const TensorSpec& spec) {
    return std::tie(spec.name, spec.dtype, spec.shape);
  };
  std::ranges::sort(expected, {}, key);
  expected.erase(std::unique(expected.begin(), expected.end()), expected.end());

  std::map<std::string, WholeTensor> tensors = checkpoint.tensors();
  if (is_ignored)
    std::erase_if(tensors, [&](const auto& entry) { return is_ignored(entry.first); });
  ir::Diagnostics diagnostics;
  check_tensors(tensors, expected, /*allow_others=*/false, &diagnostics);
  if (diagnostics.has_errors())
    throw AgreedError("the checkpoint does not fit the model:\n" + text_of(diagnostics, nullptr));

  ReadPlan plan;
  std::vector<std::span<std::byte>> buffers;
  agree(exchange, [&]() -> std::string {
    std::vector<WantedBox> wanted;
    for (const TensorPlace& place : places) {
      wanted.push_back({place.name, place.box});
      buffers.push_back(place.data);
    }
    plan = plan_reads(checkpoint.tensors(), wanted);
    return "";
  });
  read(plan, checkpoint, buffers);
}

}  // namespace pipewright::checkpoint
