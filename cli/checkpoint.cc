#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <optional>
#include <ostream>
#include <stdexcept>
#include <string>
#include <vector>

#include "pipewright/checkpoint/durable_file.h"
#include "pipewright/checkpoint/export.h"
#include "pipewright/checkpoint/folder.h"
#include "pipewright/checkpoint/in_backticks.h"
#include "pipewright/checkpoint/safetensors_file.h"
#include "pipewright/checkpoint/stored_checkpoint.h"
#include "pipewright/cli/command_table.h"
#include "pipewright/cli/files.h"
#include "pipewright/cli/input.h"
#include "pipewright/cli/invocation.h"
#include "pipewright/cli/json.h"
#include "pipewright/ir/diagnostic.h"
#include "pipewright/ir/printable.h"

namespace pipewright::cli {
namespace {

namespace fs = std::filesystem;
using checkpoint::StoredCheckpoint;
using checkpoint::WholeTensor;

constexpr std::string_view kOptimizer = "optim.";

// One of the checkpoints that DIR has, or the only one that it is.
struct CheckpointEntry {
  std::filesystem::path path;
  bool is_latest = false;                                  // `latest` names it
  std::optional<checkpoint::StoredCheckpoint> checkpoint;  // nullopt if it is damaged
  checkpoint::CheckpointReport report;
};

// ---- what is shown

// "4096 bytes", "4.1 MB": powers of 1000, as `ls -h --si` and Hugging Face count.
std::string bytes_text(uint64_t bytes) {
  if (bytes < 10'000) return ir::counted(bytes, "byte", "bytes");
  constexpr std::string_view kUnits[] = {"kB", "MB", "GB", "TB"};
  double amount = static_cast<double>(bytes) / 1000;
  size_t unit = 0;
  for (; amount >= 999.5 && unit + 1 < std::size(kUnits); ++unit) amount /= 1000;
  return fmt::format("{:.{}f} {}", amount, amount < 10 ? 1 : 0, kUnits[unit]);
}

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
  // Taken apart, here and in print_checkpoint(), so that a field more does not compile before it is
  // shown, or has a home in entry_json().
  const auto& [step, save_id, schedule, program_digest, mesh, files, tensors, state] = manifest;
  Json dims = Json::array();
  for (const layout::MeshDim& dim : mesh) dims.push_back({{"name", dim.name}, {"size", dim.size}});
  return {{"step", step},
          {"schedule", schedule},
          {"program_digest", program_digest},
          {"mesh", dims},
          {"state", state}};
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
        {{"file", file.text.name}, {"diagnostics", diagnostics_json(file.diagnostics)}});
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

// A line per checkpoint.
void print_checkpoints(const std::vector<CheckpointEntry>& entries, Console& console) {
  for (const CheckpointEntry& entry : entries) {
    console.out << fmt::format(
        "{}: {}{}\n", ir::printable(entry.path.native()),
        entry.checkpoint ? size_text(*entry.checkpoint) : "damaged: for details, run `verify`",
        entry.is_latest ? ", latest" : "");
  }
}

// One checkpoint and its tensors.
void print_checkpoint(const CheckpointEntry& entry, Console& console) {
  const StoredCheckpoint& checkpoint = *entry.checkpoint;
  console.out << fmt::format("{}: {}\n", ir::printable(entry.path.native()), size_text(checkpoint));
  if (const auto& manifest = checkpoint.manifest()) {
    const auto line = [&](std::string_view what, std::string_view text) {
      if (!text.empty()) console.out << fmt::format("  {:<9} {}\n", what, ir::printable(text));
    };
    const auto& [step, save_id, schedule, program_digest, mesh, files, tensors, state] = *manifest;
    line("step", std::to_string(step));
    line("schedule", schedule);
    line("program", program_digest);
    line("mesh", mesh_text(mesh));
    for (const auto& [key, value] : state) {
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

// What is not wrong but worth knowing, to stderr: files that are not read, and why something may be
// missing without being noticed.
void print_notes(const CheckpointEntry& entry, Console& console) {
  const auto print = [&](const std::string& file, const std::string& text) {
    console.err << fmt::format("{}: note: {}\n", ir::printable(file), text);
  };
  for (const checkpoint::CheckpointNote& note : entry.report.notes) print(note.file, note.text);
  if (!entry.checkpoint) return;
  const std::string unknown = unknown_text(entry.checkpoint->unknown());
  if (!unknown.empty()) print(entry.path.native(), unknown);
}

// Everything that is wrong, to stderr.
void print_report(const checkpoint::CheckpointReport& report, Console& console) {
  for (const checkpoint::FileReport& file : report.files)
    print_diagnostics(file.diagnostics, &file.text, ir::printable(file.text.name), console);
}

// {"version": 1, "valid": ..., "checkpoints": [...]}; with the tensors if `with_tensors`.
void print_checkpoints_json(const std::vector<CheckpointEntry>& entries, bool with_tensors,
                            Console& console) {
  Json json = {{"version", 1}, {"valid", true}, {"checkpoints", Json::array()}};
  for (const CheckpointEntry& entry : entries) {
    if (!entry.report.ok()) json["valid"] = false;
    json["checkpoints"].push_back(entry_json(entry, with_tensors));
  }
  print_json(json, console.out);
}

// ---- the commands

// The checkpoints of a folder, or the one that it is.
std::vector<CheckpointEntry> open_all(const fs::path& path, checkpoint::Gaps gaps) {
  std::vector<CheckpointEntry> entries;
  if (checkpoint::has_checkpoints(path)) {
    for (const checkpoint::FolderEntry& found : checkpoint::list_checkpoints(path))
      entries.push_back({found.path, found.is_latest, {}, {}});
  } else {
    entries.push_back({path, false, {}, {}});
  }
  for (CheckpointEntry& entry : entries)
    entry.checkpoint = StoredCheckpoint::open(entry.path, &entry.report, gaps);
  return entries;
}

bool all_valid(const std::vector<CheckpointEntry>& entries) {
  return std::ranges::all_of(entries,
                             [](const CheckpointEntry& entry) { return entry.report.ok(); });
}

// A line on the terminal that is overwritten: "verified 1.2 GB of 4.0 GB".
class Progress {
 public:
  Progress(std::string_view what, uint64_t total, const Invocation& invocation, Console& console)
      : what_(what),
        total_(total),
        is_shown_(::isatty(STDERR_FILENO) != 0 && !invocation.has("--json")),
        console_(console) {}
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  ~Progress() {
    if (is_shown_) console_.err << "\r\x1b[K" << std::flush;
  }

  void show(uint64_t done) {
    if (!is_shown_) return;
    console_.err << fmt::format("\r{} {} of {}\x1b[K", what_, bytes_text(done), bytes_text(total_))
                 << std::flush;
  }

 private:
  std::string_view what_;
  uint64_t total_;
  bool is_shown_;
  Console& console_;
};

int run_ls(const Invocation& invocation, Console& console) {
  const fs::path path = invocation.arguments[1];
  // A file may be one of several that have the parts of a tensor.
  const std::vector<CheckpointEntry> entries = open_all(
      path, fs::is_directory(path) ? checkpoint::Gaps::kErrors : checkpoint::Gaps::kAllowed);
  if (invocation.has("--json")) {
    print_checkpoints_json(entries, /*with_tensors=*/true, console);
  } else if (checkpoint::has_checkpoints(path)) {
    print_checkpoints(entries, console);
  } else if (entries[0].checkpoint) {
    print_checkpoint(entries[0], console);
    print_notes(entries[0], console);
  } else {
    print_report(entries[0].report, console);
  }
  return all_valid(entries) ? kExitOk : kExitInvalid;
}

int run_verify(const Invocation& invocation, Console& console) {
  std::vector<CheckpointEntry> entries =
      open_all(invocation.arguments[1], checkpoint::Gaps::kErrors);
  for (CheckpointEntry& entry : entries) {
    if (!entry.checkpoint) continue;
    Progress progress("verified", entry.checkpoint->size(), invocation, console);
    entry.checkpoint->verify(&entry.report, [&](uint64_t done) { progress.show(done); });
  }
  if (invocation.has("--json")) {
    print_checkpoints_json(entries, /*with_tensors=*/false, console);
    return all_valid(entries) ? kExitOk : kExitInvalid;
  }
  for (const CheckpointEntry& entry : entries) {
    print_report(entry.report, console);
    if (!entry.report.ok()) continue;
    const checkpoint::Unknown& unknown = entry.checkpoint->unknown();
    console.out << fmt::format(
        "{}: {}: {}, {}, {}\n", ir::printable(entry.path.native()),
        !unknown.sizes.empty() ? "not known whether complete"
        : unknown.tensors      ? "every tensor is whole"
                               : "whole",
        ir::counted(entry.checkpoint->files().size(), "file", "files"),
        bytes_text(entry.checkpoint->size()),
        entry.checkpoint->manifest() ? "checksums match" : "no manifest, so no checksums");
    print_notes(entry, console);
  }
  return all_valid(entries) ? kExitOk : kExitInvalid;
}

// "5GB", "200MB", "4096".
uint64_t parse_file_size(const std::string& text) {
  uint64_t number = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const std::string_view unit(stop, text.data() + text.size());
  const uint64_t factor = unit.empty()   ? 1
                          : unit == "kB" ? 1'000
                          : unit == "MB" ? 1'000'000
                          : unit == "GB" ? 1'000'000'000
                                         : 0;
  uint64_t bytes = 0;
  if (error != std::errc() || __builtin_mul_overflow(number, factor, &bytes) || bytes == 0)
    throw wrong_value("--max-file-size", "bytes, as in 5GB, 200MB or 4096", text);
  return bytes;
}

// The checkpoint at the path, or the one of a folder from which training would resume.
CheckpointEntry open_one(const fs::path& path, Console& console) {
  CheckpointEntry entry{path, false, {}, {}};
  if (checkpoint::has_checkpoints(path)) {
    if (auto latest = checkpoint::open_latest(path, &entry.report)) {
      entry.path = latest->path;
      entry.checkpoint = std::move(latest->checkpoint);
    }
  } else {
    entry.checkpoint = StoredCheckpoint::open(path, &entry.report);
  }
  print_report(entry.report, console);
  if (!entry.checkpoint) throw Failed{kExitInvalid};
  print_notes(entry, console);
  return entry;
}

int run_export(const Invocation& invocation, Console& console) {
  if (!invocation.has("--output"))
    throw UsageError("export: expected -o FILE.safetensors or -o FOLDER, got none");
  const fs::path target = *invocation.text("--output");
  const bool is_file = target.extension() == ".safetensors";
  if (is_file && invocation.has("--max-file-size"))
    throw UsageError("--max-file-size requires -o FOLDER");
  const uint64_t max_file_size =
      parse_file_size(invocation.text("--max-file-size").value_or("5GB"));
  const CheckpointEntry entry = open_one(invocation.arguments[1], console);

  std::vector<std::string> names;
  uint64_t bytes = 0;
  for (const auto& [name, tensor] : entry.checkpoint->tensors()) {
    if (name.starts_with(kOptimizer) && !invocation.has("--all")) continue;
    names.push_back(name);
    bytes += *checkpoint::bytes_of(tensor.dtype, tensor.shape);
  }
  {
    Progress progress("wrote", bytes, invocation, console);
    const auto show = [&](uint64_t done) { progress.show(done); };
    if (is_file) {
      checkpoint::export_file(*entry.checkpoint, names, target, show);
    } else {
      checkpoint::export_folder(*entry.checkpoint, names, target, max_file_size, show);
    }
  }
  const size_t left_out = entry.checkpoint->tensors().size() - names.size();
  if (invocation.has("--json")) {
    print_json({{"version", 1},
                {"checkpoint", entry.path.native()},
                {"output", target.native()},
                {"tensors", names.size()},
                {"bytes", bytes},
                {"left_out", left_out}},
               console.out);
    return kExitOk;
  }
  console.out << fmt::format(
      "wrote {} of {}, {}, to {}{}\n", ir::counted(names.size(), "tensor", "tensors"),
      ir::printable(entry.path.native()), bytes_text(bytes), ir::printable(target.native()),
      left_out == 0
          ? ""
          : fmt::format("; left out {} of the optimizer: add --all to include {}",
                        ir::counted(left_out, "tensor", "tensors"), left_out == 1 ? "it" : "them"));
  return kExitOk;
}

}  // namespace

int run_checkpoint(const Invocation& invocation, Console& console) {
  const std::string& what = invocation.arguments[0];
  try {
    if (what != "export") {
      for (const char* option : {"--output", "--all", "--max-file-size"}) {
        if (invocation.has(option)) throw UsageError(fmt::format("{} is for export", option));
      }
    }
    return what == "ls"       ? run_ls(invocation, console)
           : what == "verify" ? run_verify(invocation, console)
                              : run_export(invocation, console);
  } catch (const std::filesystem::filesystem_error& error) {
    throw FileError(error.what());
  } catch (const std::invalid_argument& error) {  // parts that cannot be put together
    throw FileError(error.what());
  }
}

}  // namespace pipewright::cli
