#include "pipewright/cli/checkpoint_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <ostream>

#include "pipewright/checkpoint/durable_file.h"
#include "pipewright/checkpoint/folder.h"
#include "pipewright/checkpoint/in_backticks.h"
#include "pipewright/cli/input.h"
#include "pipewright/ir/printable.h"
#include "pipewright/ir/text/render.h"

namespace pipewright::cli {
namespace {

using checkpoint::StoredCheckpoint;
using checkpoint::WholeTensor;
using Json = nlohmann::ordered_json;

uint64_t size_of(const WholeTensor& tensor) {
  return *checkpoint::bytes_of(tensor.dtype, tensor.shape);
}

// "64 bytes", or "32 bytes of 64 bytes" of a tensor of which there are not all parts.
std::string stored_text(const WholeTensor& tensor) {
  uint64_t stored = 0;
  for (const checkpoint::StoredBox& box : tensor.boxes)
    stored += checkpoint::bytes_of(tensor.dtype, box.box.sizes).value_or(0);
  const uint64_t whole = size_of(tensor);
  return (stored < whole ? bytes_text(stored) + " of " : "") + bytes_text(whole);
}

std::string mesh_text(const std::vector<layout::MeshDim>& mesh) {
  std::string text;
  for (const layout::MeshDim& dim : mesh)
    text += fmt::format("{}{}={}", text.empty() ? "" : " ", dim.name, dim.size);
  return ir::printable(text);
}

// "12 tensors in 4 files, 4.1 MB".
std::string size_text(const StoredCheckpoint& checkpoint) {
  return fmt::format("{} in {}, {}", ir::counted(checkpoint.tensors().size(), "tensor", "tensors"),
                     ir::counted(checkpoint.files().size(), "file", "files"),
                     bytes_text(checkpoint.size()));
}

Json manifest_json(const checkpoint::Manifest& manifest) {
  Json mesh = Json::array();
  for (const layout::MeshDim& dim : manifest.mesh)
    mesh.push_back({{"name", dim.name}, {"size", dim.size}});
  return {{"step", manifest.step},
          {"schedule", manifest.schedule},
          {"program_digest", manifest.program_digest},
          {"mesh", mesh},
          {"state", manifest.state}};
}

Json tensors_json(const StoredCheckpoint& checkpoint) {
  Json tensors = Json::array();
  for (const auto& [name, tensor] : checkpoint.tensors()) {
    Json parts = Json::array();
    for (const checkpoint::StoredBox& box : tensor.boxes)
      parts.push_back({{"file", checkpoint.file_names()[box.file]},
                       {"begin", box.box.begin},
                       {"sizes", box.box.sizes}});
    tensors.push_back({{"name", name},
                       {"dtype", checkpoint::name(tensor.dtype)},
                       {"shape", tensor.shape},
                       {"bytes", size_of(tensor)},
                       {"parts", parts}});
  }
  return tensors;
}

// What nothing says about the checkpoint; empty if everything is known.
std::string unknown_text(const checkpoint::Unknown& unknown) {
  std::vector<std::string> texts;
  if (!unknown.sizes.empty())
    texts.push_back(fmt::format(
        "no file says the full size of tensor {}{}, so parts at {} end may be missing",
        checkpoint::in_backticks(unknown.sizes.front()),
        unknown.sizes.size() == 1
            ? ""
            : fmt::format(" and of {}",
                          ir::counted(unknown.sizes.size() - 1, "more tensor", "more tensors")),
        unknown.sizes.size() == 1 ? "its" : "their"));
  if (unknown.tensors)
    texts.emplace_back("no index or manifest lists the tensors, so others may be missing");
  return fmt::format("{}", fmt::join(texts, "; "));
}

// true, false if it is damaged, null if nothing says that nothing is missing.
Json is_whole(const CheckpointEntry& entry) {
  if (!entry.report.ok() || !entry.checkpoint) return false;
  const checkpoint::Unknown& unknown = entry.checkpoint->unknown();
  return unknown.sizes.empty() && !unknown.tensors ? Json(true) : Json(nullptr);
}

Json entry_json(const CheckpointEntry& entry, bool with_tensors) {
  Json json = {{"path", entry.path.native()},  {"valid", entry.report.ok()},
               {"is_latest", entry.is_latest}, {"step", nullptr},
               {"has_checksums", false},       {"bytes", nullptr},
               {"manifest", nullptr},          {"files", Json::array()},
               {"errors", Json::array()},      {"whole", is_whole(entry)},
               {"unknown", nullptr},           {"notes", Json::array()}};
  if (const auto step = checkpoint::step_of(entry.path.filename())) json["step"] = *step;
  for (const checkpoint::FileReport& file : entry.report.files)
    json["errors"].push_back(
        {{"file", file.text.name},
         {"diagnostics", Json::parse(ir::diagnostics_json(file.diagnostics, 0))}});
  for (const checkpoint::CheckpointNote& note : entry.report.notes)
    json["notes"].push_back(note.text);
  if (!entry.checkpoint) return json;
  const StoredCheckpoint& checkpoint = *entry.checkpoint;
  if (const std::string unknown = unknown_text(checkpoint.unknown()); !unknown.empty())
    json["unknown"] = unknown;
  json["bytes"] = checkpoint.size();
  if (checkpoint.manifest()) {
    json["step"] = checkpoint.manifest()->step;
    json["has_checksums"] = true;
    json["manifest"] = manifest_json(*checkpoint.manifest());
  }
  for (size_t index = 0; index < checkpoint.files().size(); ++index) {
    Json file = {{"name", checkpoint.file_names()[index]},
                 {"bytes", checkpoint.files()[index].bytes().size()},
                 {"crc32", nullptr}};
    if (checkpoint.manifest())
      file["crc32"] = checkpoint::crc32_text(checkpoint.manifest()->files[index].crc32);
    json["files"].push_back(std::move(file));
  }
  if (with_tensors) json["tensors"] = tensors_json(checkpoint);
  return json;
}

}  // namespace

std::string bytes_text(uint64_t bytes) {
  if (bytes < 10'000) return ir::counted(bytes, "byte", "bytes");
  constexpr std::string_view kUnits[] = {"kB", "MB", "GB", "TB"};
  double amount = static_cast<double>(bytes) / 1000;
  size_t unit = 0;
  for (; amount >= 999.5 && unit + 1 < std::size(kUnits); ++unit) amount /= 1000;
  return fmt::format("{:.{}f} {}", amount, amount < 10 ? 1 : 0, kUnits[unit]);
}

void print_checkpoints(const std::vector<CheckpointEntry>& entries, Console& console) {
  for (const CheckpointEntry& entry : entries) {
    console.out << fmt::format(
        "{}: {}{}\n", ir::printable(entry.path.native()),
        entry.checkpoint ? size_text(*entry.checkpoint) : "damaged: `verify` tells more",
        entry.is_latest ? ", latest" : "");
  }
}

void print_checkpoint(const CheckpointEntry& entry, Console& console) {
  const StoredCheckpoint& checkpoint = *entry.checkpoint;
  console.out << fmt::format("{}: {}\n", ir::printable(entry.path.native()), size_text(checkpoint));
  if (const auto& manifest = checkpoint.manifest()) {
    const auto line = [&](std::string_view what, std::string_view text) {
      if (!text.empty()) console.out << fmt::format("  {:<9} {}\n", what, ir::printable(text));
    };
    line("step", std::to_string(manifest->step));
    line("schedule", manifest->schedule);
    line("program", manifest->program_digest);
    line("mesh", mesh_text(manifest->mesh));
    for (const auto& [key, value] : manifest->state) {
      constexpr size_t kShown = 60;
      line("state", fmt::format("{} = {}{}", key, value.substr(0, kShown),
                                value.size() > kShown ? "..." : ""));
    }
  }
  size_t width = 4;
  std::vector<std::string> names;
  for (const auto& [name, tensor] : checkpoint.tensors()) {
    names.push_back(ir::printable(name));
    width = std::max(width, names.back().size());
  }
  size_t index = 0;
  for (const auto& [name, tensor] : checkpoint.tensors())
    console.out << fmt::format(
        "{:<{}}  {:<20}  {}\n", names[index++], width,
        fmt::format("{}[{}]", checkpoint::name(tensor.dtype), fmt::join(tensor.shape, ", ")),
        stored_text(tensor) +
            (tensor.boxes.size() == 1 ? "" : fmt::format(" in {} parts", tensor.boxes.size())));
}

void print_notes(const CheckpointEntry& entry, Console& console) {
  const auto print = [&](const std::string& file, const std::string& text) {
    console.err << fmt::format("{}: note: {}\n", ir::printable(file), text);
  };
  for (const checkpoint::CheckpointNote& note : entry.report.notes) print(note.file, note.text);
  if (!entry.checkpoint) return;
  const std::string unknown = unknown_text(entry.checkpoint->unknown());
  if (!unknown.empty()) print(entry.path.native(), unknown);
}

void print_report(const checkpoint::CheckpointReport& report, Console& console) {
  for (const checkpoint::FileReport& file : report.files)
    print_diagnostics(file.diagnostics, &file.text, ir::printable(file.text.name), console);
}

std::string checkpoints_json(const std::vector<CheckpointEntry>& entries, bool with_tensors) {
  Json json = {{"version", 1}, {"valid", true}, {"checkpoints", Json::array()}};
  for (const CheckpointEntry& entry : entries) {
    if (!entry.report.ok()) json["valid"] = false;
    json["checkpoints"].push_back(entry_json(entry, with_tensors));
  }
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace pipewright::cli
