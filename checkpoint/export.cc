#include "pipewright/checkpoint/export.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <utility>
#include <vector>

#include "pipewright/checkpoint/durable_file.h"
#include "pipewright/checkpoint/read_plan.h"
#include "pipewright/checkpoint/safetensors_file.h"
#include "pipewright/ir/printable.h"
#include "pipewright/layout/boxes.h"

namespace pipewright::checkpoint {
namespace {

namespace fs = std::filesystem;

const WholeTensor& find(const StoredCheckpoint& checkpoint, const std::string& name) {
  const auto found = checkpoint.tensors().find(name);
  if (found == checkpoint.tensors().end())
    throw std::invalid_argument(fmt::format("the checkpoint has no tensor `{}`", name));
  return found->second;
}

uint64_t size_of(const WholeTensor& tensor) { return *bytes_of(tensor.dtype, tensor.shape); }

bool is_inside(const fs::path& path, const fs::path& folder) {
  return std::ranges::mismatch(folder, path).in1 == folder.end();
}

// Refuses to write over a file of the checkpoint, or beside its files.
void check_outside(const StoredCheckpoint& checkpoint, const fs::path& target) {
  std::vector<fs::path> sources = {fs::canonical(checkpoint.path())};
  // A folder's files may be links to files elsewhere.
  if (fs::is_directory(sources[0])) {
    for (const std::string& name : checkpoint.file_names())
      sources.push_back(fs::canonical(sources[0] / name));
  }
  for (const fs::path& path : {target, fs::path(target.native() + ".tmp")}) {
    // Renaming replaces a link, and opening follows it.
    const fs::path parent = path.has_parent_path() ? path.parent_path() : fs::path(".");
    for (const fs::path& written :
         {fs::weakly_canonical(path), fs::weakly_canonical(parent) / path.filename()}) {
      for (const fs::path& source : sources) {
        if (is_inside(written, source))
          throw FileError(fmt::format(
              "cannot write `{}`: expected a path outside the checkpoint that is exported, `{}`",
              ir::printable(path.native()), ir::printable(checkpoint.path().native())));
      }
    }
  }
}

class Exporter {
 public:
  Exporter(const StoredCheckpoint& checkpoint, ExportProgress on_progress)
      : checkpoint_(checkpoint), on_progress_(std::move(on_progress)) {}

  void write(std::span<const std::string> names, const fs::path& path) {
    std::vector<TensorSpec> specs;
    for (const std::string& name : names) {
      const WholeTensor& tensor = find(checkpoint_, name);
      specs.push_back({name, tensor.dtype, tensor.shape});
    }
    // transformers refuses files without this entry.
    SafetensorsWriter writer(path, lay_out_safetensors(std::move(specs), {{"format", "pt"}}));
    std::vector<std::byte> data;
    for (const StoredTensor& tensor : writer.header().tensors) {
      data.resize(tensor.end - tensor.begin);
      const WantedBox wanted{tensor.name, layout::whole_box(tensor.shape)};
      const std::span<std::byte> buffer = data;
      read(plan_reads(checkpoint_.tensors(), {&wanted, 1}), checkpoint_, {&buffer, 1});
      writer.write(data);
      done_ += data.size();
      if (on_progress_) on_progress_(done_);
    }
    writer.commit();
  }

 private:
  const StoredCheckpoint& checkpoint_;
  ExportProgress on_progress_;
  uint64_t done_ = 0;
};

// Consecutive tensors whose data fit into one file.
std::vector<std::span<const std::string>> split(const StoredCheckpoint& checkpoint,
                                                std::span<const std::string> names,
                                                uint64_t max_file_size) {
  std::vector<std::span<const std::string>> files;
  uint64_t size = 0;
  for (size_t index = 0, begin = 0; index < names.size(); ++index) {
    const uint64_t bytes = size_of(find(checkpoint, names[index]));
    if (files.empty() || (size > 0 && (bytes > max_file_size || size > max_file_size - bytes))) {
      files.emplace_back();
      begin = index;
      size = 0;
    }
    size += bytes;
    files.back() = names.subspan(begin, index + 1 - begin);
  }
  if (files.empty()) files.emplace_back();
  return files;
}

// Hugging Face's index of several files.
std::string index_text(const StoredCheckpoint& checkpoint,
                       std::span<const std::span<const std::string>> files,
                       std::span<const std::string> file_names) {
  nlohmann::json weight_map = nlohmann::json::object();
  uint64_t total = 0;
  for (size_t index = 0; index < files.size(); ++index) {
    for (const std::string& name : files[index]) {
      weight_map[name] = file_names[index];
      total += size_of(find(checkpoint, name));
    }
  }
  return nlohmann::json({{"metadata", {{"total_size", total}}}, {"weight_map", weight_map}})
             .dump(2) +
         "\n";
}

// The folder in which files are written until they are whole. It is locked, which ends with the
// process, so what a killed export left behind is told from what another one writes.
class TemporaryFolder {
 public:
  explicit TemporaryFolder(const fs::path& target)
      : target_(target), path_(target.native() + ".tmp"), lock_(-1) {
    while (!try_to_lock()) {
    }
    std::error_code error;
    for (const fs::directory_entry& left : fs::directory_iterator(path_, error)) {
      fs::remove_all(left, error);
      if (error) break;
    }
    if (error) throw FileError("empty", path_.native(), error.value());
  }
  ~TemporaryFolder() {
    std::error_code error;
    if (!is_committed_) fs::remove_all(path_, error);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  const fs::path& path() const { return path_; }
  void commit() {
    sync_folder(path_);
    rename_file(path_, target_);
    is_committed_ = true;
    sync_folder(target_.parent_path());
  }

 private:
  // Returns false if another export has renamed or removed the folder before it was locked.
  bool try_to_lock() {
    std::error_code error;
    fs::create_directory(path_, error);
    if (error) throw FileError("create", path_.native(), error.value());
    lock_ = Descriptor(::open(path_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (lock_.get() < 0) {
      if (errno == ENOENT) return false;
      throw FileError("write", path_.native(), errno);
    }
    if (::flock(lock_.get(), LOCK_EX | LOCK_NB) != 0) {
      if (errno != EWOULDBLOCK) throw FileError("lock", path_.native(), errno);
      throw FileError(fmt::format("cannot write `{}`: another export writes there",
                                  ir::printable(target_.native())));
    }
    struct stat locked = {}, named = {};
    return ::fstat(lock_.get(), &locked) == 0 && ::stat(path_.c_str(), &named) == 0 &&
           locked.st_ino == named.st_ino;
  }

  const fs::path target_, path_;
  Descriptor lock_;
  bool is_committed_ = false;
};

}  // namespace

void export_file(const StoredCheckpoint& checkpoint, std::span<const std::string> names,
                 const fs::path& path, const ExportProgress& on_progress) {
  check_outside(checkpoint, path);
  Exporter(checkpoint, on_progress).write(names, path);
  sync_folder(path.parent_path());
}

void export_folder(const StoredCheckpoint& checkpoint, std::span<const std::string> names,
                   const fs::path& path, uint64_t max_file_size,
                   const ExportProgress& on_progress) {
  const auto files = split(checkpoint, names, max_file_size);
  std::vector<std::string> file_names = {"model.safetensors"};
  if (files.size() > 1) {
    file_names.clear();
    for (size_t index = 0; index < files.size(); ++index)
      file_names.push_back(
          fmt::format("model-{:05}-of-{:05}.safetensors", index + 1, files.size()));
  }
  const fs::path target = path.has_filename() ? path : path.parent_path();
  check_outside(checkpoint, target);
  std::error_code error;
  const bool is_taken = fs::exists(target) && !fs::is_empty(target, error);
  if (is_taken || error) throw FileError("write", target.native(), EEXIST);
  // Written beside it, so that the folder appears when it is whole.
  TemporaryFolder temporary(target);
  Exporter exporter(checkpoint, on_progress);
  for (size_t index = 0; index < files.size(); ++index)
    exporter.write(files[index], temporary.path() / file_names[index]);
  if (files.size() > 1)
    write_durably(temporary.path() / "model.safetensors.index.json",
                  index_text(checkpoint, files, file_names));
  temporary.commit();
}

}  // namespace pipewright::checkpoint
