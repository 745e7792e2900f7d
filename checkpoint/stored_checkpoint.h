#ifndef PIPEWRIGHT_CHECKPOINT_STORED_CHECKPOINT_H_
#define PIPEWRIGHT_CHECKPOINT_STORED_CHECKPOINT_H_

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "pipewright/checkpoint/manifest.h"
#include "pipewright/checkpoint/safetensors.h"
#include "pipewright/ir/diagnostic.h"
#include "pipewright/layout/layout.h"

// A checkpoint on disk, opened for reading: which tensors it has, and where their parts lie.
//
//   CheckpointReport report;
//   const auto checkpoint = StoredCheckpoint::open("ckpt/step-000100", &report);
//   if (!checkpoint) ...                         // report says what is wrong, file by file
//   checkpoint->tensors().at("layers.0.wq.weight").shape

namespace pipewright::checkpoint {

using layout::Box;

class SafetensorsFile;

// What is wrong with a file of a checkpoint, or with the checkpoint as a whole.
struct FileReport {
  ir::Source text;  // its name, and the text to which places refer: a header or a manifest
  ir::Diagnostics diagnostics;
};

// What is worth knowing about a checkpoint, but not wrong.
struct CheckpointNote {
  std::string file;  // the checkpoint, or a file of it
  std::string text;
};

struct CheckpointReport {
  std::vector<FileReport> files;  // those with errors
  std::vector<CheckpointNote> notes;

  bool ok() const { return files.empty(); }
  // Appends a file if there are errors.
  void add(FileReport file);
};

// A part of a tensor, as a file stores it.
struct StoredBox {
  Box box;         // in the whole tensor
  size_t file;     // index in StoredCheckpoint::files()
  uint64_t begin;  // offset of its first byte in the file
};

// A tensor of the whole model.
struct WholeTensor {
  DType dtype;
  std::vector<int64_t> shape;
  std::vector<StoredBox> boxes;  // in row-major order; together they cover it exactly once
};

// What nothing says about a checkpoint, so that something may be missing from it although open()
// finds nothing wrong. With a manifest or an index, and of plain tensors, everything is known.
struct Unknown {
  std::vector<std::string> sizes;  // tensors that may be larger: parts at their end may be missing
  bool tensors = false;            // there may be others: no manifest and no index lists them
};

// Whether a part of a tensor may be missing.
enum class Gaps {
  kErrors,
  kAllowed,  // for looking at a file that is one of several
};

// Immutable; any thread.
class StoredCheckpoint {
 public:
  // `path` is one of
  //   - a folder with a manifest (manifest.h), as save.h writes it
  //   - a folder with `*.safetensors` files, as Hugging Face's and PyTorch's tools write them: with
  //     an index, with model.safetensors, with DCP_SHARDING_INFO (manifest.h), or neither.
  //     Files that the index does not list, or beside model.safetensors, are not read; the report
  //     has a note of each.
  //   - a safetensors file
  // All headers are read and checked, the sizes of files, and that the parts of each tensor cover
  // it exactly once; the data are not read. The size of a tensor is what the manifest, the index or
  // the files say of the whole; if none does (unknown()), it ends where its last part does. Returns
  // nullopt, with everything that is wrong in `report`, if something is. Throws FileError if a file
  // cannot be read.
  static std::optional<StoredCheckpoint> open(const std::filesystem::path& path,
                                              CheckpointReport* report, Gaps gaps = Gaps::kErrors);

  const std::filesystem::path& path() const { return path_; }  // as it was opened
  const std::optional<Manifest>& manifest() const { return manifest_; }
  const std::vector<std::string>& file_names() const { return names_; }
  // See safetensors_file.h.
  const std::vector<SafetensorsFile>& files() const { return *files_; }
  const std::map<std::string, WholeTensor>& tensors() const { return tensors_; }
  const Unknown& unknown() const { return unknown_; }

  // Reads all data and compares the checksum of each file with that of the manifest; adds those
  // that differ to the report. Calls `on_progress` now and then with the number of bytes read. A
  // checkpoint without a manifest has no checksums. Of `ranks` that share the work, `rank` reads
  // every `ranks`-th file.
  void verify(CheckpointReport* report, const std::function<void(uint64_t bytes_read)>& on_progress,
              size_t rank = 0, size_t ranks = 1) const;
  uint64_t size() const;  // of all files, in bytes

 private:
  StoredCheckpoint() = default;

  std::filesystem::path path_, folder_;
  std::optional<Manifest> manifest_;
  std::vector<std::string> names_;
  std::shared_ptr<const std::vector<SafetensorsFile>> files_;
  std::map<std::string, WholeTensor> tensors_;
  Unknown unknown_;

  friend class CheckpointOpener;
};

// A checkpoint that was looked for in a folder of them, and where it is.
struct LatestCheckpoint {
  std::filesystem::path path;
  StoredCheckpoint checkpoint;
};

// Adds an error (PW113) for each tensor of `expected` that `tensors` does not have or has with
// another shape or type, and for each other tensor, unless it is allowed.
void check_tensors(const std::map<std::string, WholeTensor>& tensors,
                   std::span<const TensorSpec> expected, bool allow_others,
                   ir::Diagnostics* diagnostics);

}  // namespace pipewright::checkpoint

#endif  // PIPEWRIGHT_CHECKPOINT_STORED_CHECKPOINT_H_
