#ifndef PIPEWRIGHT_CHECKPOINT_CHECKPOINT_FILES_H_
#define PIPEWRIGHT_CHECKPOINT_CHECKPOINT_FILES_H_

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

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

}  // namespace pipewright::checkpoint

#endif  // PIPEWRIGHT_CHECKPOINT_CHECKPOINT_FILES_H_
