#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <ostream>
#include <stdexcept>
#include <string>
#include <vector>

#include "pipewright/checkpoint/durable_file.h"
#include "pipewright/checkpoint/export.h"
#include "pipewright/checkpoint/folder.h"
#include "pipewright/checkpoint/stored_checkpoint.h"
#include "pipewright/cli/checkpoint_report.h"
#include "pipewright/cli/command_table.h"
#include "pipewright/cli/files.h"
#include "pipewright/cli/invocation.h"
#include "pipewright/ir/diagnostic.h"
#include "pipewright/ir/printable.h"

namespace pipewright::cli {
namespace {

namespace fs = std::filesystem;
using checkpoint::StoredCheckpoint;

constexpr std::string_view kOptimizer = "optim.";

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
    console.out << checkpoints_json(entries, /*with_tensors=*/true);
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
    console.out << checkpoints_json(entries, /*with_tensors=*/false);
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
    console.out << nlohmann::ordered_json({{"version", 1},
                                           {"checkpoint", entry.path.native()},
                                           {"output", target.native()},
                                           {"tensors", names.size()},
                                           {"bytes", bytes},
                                           {"left_out", left_out}})
                       .dump(2, ' ', false, nlohmann::json::error_handler_t::replace)
                << '\n';
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
