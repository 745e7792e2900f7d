#ifndef PIPEWRIGHT_CHECKPOINT_FOLDER_H_
#define PIPEWRIGHT_CHECKPOINT_FOLDER_H_

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "pipewright/checkpoint/durable_file.h"
#include "pipewright/checkpoint/manifest.h"
#include "pipewright/checkpoint/stored_checkpoint.h"

// The files that a checkpoint consists of, before any of them is opened.

namespace pipewright::checkpoint {

inline constexpr const char* kIndexName = "model.safetensors.index.json";

struct CheckpointFiles {
  std::filesystem::path folder;
  std::vector<std::string> names;  // in the folder
  // Whether these are all files, as a list or their names say: model.safetensors, or all of
  // model-00001-of-00002.safetensors and model-00002-of-00002.safetensors.
  bool are_all = true;
  std::optional<Manifest> manifest;          // of save.h
  std::map<std::string, std::string> index;  // Hugging Face's: file by tensor
  std::optional<uint64_t> total_size;        // of the index: the bytes of all tensors
};

// `path` is as in StoredCheckpoint::open(), and so are the errors and notes that this adds: a file
// that is listed is not there, or a list is damaged. Throws FileError if the path cannot be read.
CheckpointFiles list_checkpoint_files(const std::filesystem::path& path, CheckpointReport* report);

// The folder in which a job saves its checkpoints:
//
//   ckpt/
//     step-000100/      pipewright.json, shard-00001-model-00001-of-00001.safetensors, ...
//     step-000200/
//     latest            "step-000200": the one to resume from
//     step-000300.tmp/  being written, or left by a crash; never loaded
//     .lock             locked while a job saves here

// "step-000100".
std::string step_name(int64_t step);
// The step of such a name; nullopt for any other.
std::optional<int64_t> step_of(const std::string& name);

struct FolderEntry {
  int64_t step;
  std::filesystem::path path;
  bool is_latest;  // `latest` names it
};
// The checkpoints of a folder by ascending step. Throws FileError if the folder cannot be read.
std::vector<FolderEntry> list_checkpoints(const std::filesystem::path& folder);

// The same, in the order in which training tries to go on from them: the one that `latest` names,
// then the others by descending step.
std::vector<FolderEntry> newest_checkpoints(const std::filesystem::path& folder);

// Whether the path is a folder of checkpoints, rather than a checkpoint.
bool has_checkpoints(const std::filesystem::path& folder);

// Opens the first of newest_checkpoints() that is whole, but for its data, which are not read.
// Returns nullopt if there is none. `report` says what is wrong with those that were passed over.
std::optional<LatestCheckpoint> open_latest(const std::filesystem::path& folder,
                                            CheckpointReport* report);

// Keeps other jobs from saving into a folder, while it exists. It ends with the process, however
// that ends.
class SaveLock {
 public:
  // Creates the folder if it is not there. Throws FileError, naming the other job, if that holds
  // the lock, or the folder cannot be written.
  explicit SaveLock(const std::filesystem::path& folder);

 private:
  Descriptor file_;
};

}  // namespace pipewright::checkpoint

#endif  // PIPEWRIGHT_CHECKPOINT_FOLDER_H_
