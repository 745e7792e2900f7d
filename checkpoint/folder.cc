#include "pipewright/checkpoint/folder.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <fstream>

#include "pipewright/comms/process/environment.h"
#include "pipewright/ir/printable.h"

namespace pipewright::checkpoint {
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
