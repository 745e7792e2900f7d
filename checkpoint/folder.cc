#include "pipewright/checkpoint/folder.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>
#include <utility>

#include "pipewright/checkpoint/durable_file.h"
#include "pipewright/checkpoint/in_backticks.h"
#include "pipewright/checkpoint/safetensors_file.h"
#include "pipewright/comms/process/environment.h"
#include "pipewright/ir/printable.h"

namespace pipewright::checkpoint {

namespace {

namespace fs = std::filesystem;
using ir::Rule;
using Names = std::vector<std::string>;  // sorted

constexpr const char* kOnlyName = "model.safetensors";
constexpr const char* kExtension = ".safetensors";

Names safetensors_files(const fs::path& folder) {
  Names names;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string name = entry->path().filename();
    if (name.ends_with(kExtension)) names.push_back(name);
  }
  if (error) throw FileError("read", folder.native(), error.value());
  std::ranges::sort(names);
  return names;
}

// The names of all files of which `name`, such as model-00002-of-00005.safetensors, says that it is
// one; none if it does not say that. Files of ranks, shard-00001-model-..., do not: a rank without
// tensors for a file does not write it.
Names siblings(const std::string& name) {
  constexpr size_t kTail = std::string_view("-00002-of-00005.safetensors").size();
  if (name.size() < kTail || name.starts_with("shard-")) return {};
  const std::string stem = name.substr(0, name.size() - kTail);
  int number = 0, count = 0;
  if (std::sscanf(name.c_str() + stem.size(), "-%5d-of-%5d", &number, &count) != 2) return {};
  Names all;
  for (int each = 1; each <= count; ++each)
    all.push_back(fmt::format("{}-{:05}-of-{:05}{}", stem, each, count, kExtension));
  if (std::ranges::find(all, name) == all.end()) return {};
  return all;
}

class FileLister {
 public:
  explicit FileLister(CheckpointReport* report) : report_(*report) {}

  CheckpointFiles list(const fs::path& path) {
    if (!fs::is_directory(path)) {
      files_.folder = path.parent_path();
      files_.names = {path.filename()};
      return std::move(files_);
    }
    files_.folder = path;
    there_ = safetensors_files(path);
    if (path.extension() == ".tmp" && step_of(path.stem())) {
      FileReport file{{path.native(), {}}, {}};
      file.diagnostics.error(Rule::kManifest, "the checkpoint was never finished");
      report_.add(std::move(file));
    } else if (fs::exists(path / kManifestName)) {
      list_by_manifest();
    } else if (fs::exists(path / kIndexName)) {
      list_by_index();
    } else if (std::ranges::find(there_, kOnlyName) != there_.end()) {
      files_.names = {kOnlyName};
      note_others(fmt::format("{} is the whole model", kOnlyName));
    } else {
      list_by_names();
    }
    return std::move(files_);
  }

 private:
  FileReport open_text(const char* name) const {
    const fs::path path = files_.folder / name;
    return {{path, std::string(MappedFile(path).text())}, {}};
  }

  void list_by_manifest() {
    FileReport file = open_text(kManifestName);
    files_.manifest = parse_manifest(file.text, &file.diagnostics);
    if (files_.manifest) {
      for (const ManifestFile& one : files_.manifest->files) files_.names.push_back(one.name);
      check_presence(files_.names, &file.diagnostics);
      for (const std::string& name : others())
        file.diagnostics.error(
            Rule::kCheckpointFile,
            fmt::format("file {} is in the folder, but not listed", in_backticks(name)));
    }
    report_.add(std::move(file));
  }

  // Hugging Face's index of a model in several files.
  void list_by_index() {
    FileReport file = open_text(kIndexName);
    const auto json = nlohmann::json::parse(file.text.text, nullptr, /*allow_exceptions=*/false);
    if (!json.is_object() || !json.contains("weight_map") || !json["weight_map"].is_object()) {
      file.diagnostics.error(Rule::kManifest, "expected a JSON object with a `weight_map`");
    } else {
      std::set<std::string> names;
      for (const auto& [tensor, in] : json["weight_map"].items()) {
        if (!in.is_string() || in.get<std::string>().find('/') != std::string::npos) {
          file.diagnostics.error(
              Rule::kManifest,
              fmt::format("weight_map: {}: expected the name of a file in the folder, got {}",
                          in_backticks(tensor), in_backticks(in.dump())));
        } else {
          names.insert(in);
          files_.index.emplace(tensor, in);
        }
      }
      files_.names.assign(names.begin(), names.end());
      check_presence(files_.names, &file.diagnostics);
      note_others(fmt::format("{} does not list it", kIndexName));
      if (const auto found = json.find("metadata"); found != json.end() && found->is_object()) {
        const auto size = found->find("total_size");
        if (size != found->end() && size->is_number_unsigned()) files_.total_size = *size;
      }
    }
    report_.add(std::move(file));
  }

  // Nothing lists the files.
  void list_by_names() {
    FileReport file{{files_.folder.native(), {}}, {}};
    if (there_.empty())
      file.diagnostics.error(Rule::kCheckpointFile, fmt::format("expected {} or *{}, got neither",
                                                                kManifestName, kExtension));
    files_.names = there_;
    std::set<std::string> expected;
    for (const std::string& name : there_) {
      if (expected.contains(name)) continue;
      const Names all = siblings(name);
      files_.are_all = files_.are_all && !all.empty();
      expected.insert(all.begin(), all.end());
    }
    check_presence({expected.begin(), expected.end()}, &file.diagnostics);
    report_.add(std::move(file));
  }

  void check_presence(const Names& listed, ir::Diagnostics* diagnostics) const {
    for (const std::string& name : listed) {
      if (!std::ranges::binary_search(there_, name))
        diagnostics->error(Rule::kCheckpointFile,
                           fmt::format("expected file {}, got none", in_backticks(name)));
    }
  }

  // The files of the folder that are not listed.
  Names others() const {
    const std::set<std::string> listed(files_.names.begin(), files_.names.end());
    Names others;
    std::ranges::set_difference(there_, listed, std::back_inserter(others));
    return others;
  }
  void note_others(const std::string& why) {
    for (const std::string& name : others())
      report_.notes.push_back({files_.folder.native(),
                               fmt::format("file {} is not read: {}", in_backticks(name), why)});
  }

  CheckpointReport& report_;
  CheckpointFiles files_;
  Names there_;  // the files of the folder
};

}  // namespace

CheckpointFiles list_checkpoint_files(const fs::path& path, CheckpointReport* report) {
  return FileLister(report).list(path);
}

namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "step-";

// What `latest` says, or empty.
std::string latest_name(const fs::path& folder) {
  std::ifstream file(folder / "latest");
  std::string name;
  std::getline(file, name);
  return name;
}

}  // namespace

std::string step_name(int64_t step) { return fmt::format("{}{:06}", kPrefix, step); }

std::optional<int64_t> step_of(const std::string& name) {
  int64_t step = 0;
  const std::string digits = name.substr(std::min(name.size(), kPrefix.size()));
  const auto [stop, error] = std::from_chars(digits.data(), digits.data() + digits.size(), step);
  if (error != std::errc() || step < 0 || step_name(step) != name) return std::nullopt;
  return step;
}

std::vector<FolderEntry> list_checkpoints(const fs::path& folder) {
  std::vector<FolderEntry> entries;
  const std::string latest = latest_name(folder);
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string name = entry->path().filename();
    if (const auto step = step_of(name); step && entry->is_directory())
      entries.push_back({*step, entry->path(), name == latest});
  }
  if (error) throw FileError("read", folder.native(), error.value());
  std::ranges::sort(entries, {}, &FolderEntry::step);
  return entries;
}

bool has_checkpoints(const fs::path& folder) {
  return fs::is_directory(folder) && !fs::exists(folder / kManifestName) &&
         !list_checkpoints(folder).empty();
}

std::vector<FolderEntry> newest_checkpoints(const fs::path& folder) {
  std::vector<FolderEntry> entries = list_checkpoints(folder);
  std::ranges::reverse(entries);
  std::ranges::stable_sort(entries, [](const FolderEntry& left, const FolderEntry& right) {
    return left.is_latest > right.is_latest;
  });
  return entries;
}

std::optional<LatestCheckpoint> open_latest(const fs::path& folder, CheckpointReport* report) {
  for (const FolderEntry& entry : newest_checkpoints(folder)) {
    auto checkpoint = StoredCheckpoint::open(entry.path, report);
    if (checkpoint) return LatestCheckpoint{entry.path, *std::move(checkpoint)};
  }
  return std::nullopt;
}

SaveLock::SaveLock(const fs::path& folder) : file_(-1) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) throw FileError("create", folder.native(), error.value());
  const fs::path path = folder / ".lock";
  file_ = Descriptor(::open(path.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0666));
  if (file_.get() < 0) throw FileError("write", path.native(), errno);
  if (::flock(file_.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) throw FileError("lock", path.native(), errno);
    std::string holder;
    std::ifstream file(path);
    std::getline(file, holder);
    throw FileError(fmt::format("cannot save to `{}`: another job saves there ({})",
                                ir::printable(folder.native()), ir::printable(holder)));
  }
  // For the other job's error; nothing depends on it.
  const std::string holder = fmt::format("process {} on {}\n", ::getpid(), comms::host_name());
  if (::ftruncate(file_.get(), 0) == 0)
    (void)!::pwrite(file_.get(), holder.data(), holder.size(), 0);
}

}  // namespace pipewright::checkpoint
