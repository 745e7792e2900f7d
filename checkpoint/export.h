#ifndef PIPEWRIGHT_CHECKPOINT_EXPORT_H_
#define PIPEWRIGHT_CHECKPOINT_EXPORT_H_

#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>

#include "pipewright/checkpoint/stored_checkpoint.h"

// Writes tensors of a checkpoint whole, as Hugging Face's tools and safetensors.torch expect them.
// Takes the memory of the largest tensor. Files appear when they are whole and durable.
//
// Both functions throw FileError, before they write anything, if that would change the checkpoint:
// if the path, or `PATH.tmp`, which they write first, is in its folder or is one of its files.

namespace pipewright::checkpoint {

// Receives the number of bytes written so far.
using ExportProgress = std::function<void(uint64_t bytes)>;

// Writes one file; an older one of that name is replaced. Throws std::invalid_argument if
// `names` has a tensor that is not in the checkpoint, or a tensor was saved in parts and its
// elements are smaller than a byte; FileError if the file cannot be written.
void export_file(const StoredCheckpoint& checkpoint, std::span<const std::string> names,
                 const std::filesystem::path& path, const ExportProgress& on_progress);

// Writes a folder, which must not exist or be empty: model.safetensors, or if the tensors are
// larger than `max_file_size` bytes, model-00001-of-0000N.safetensors, ... and
// model.safetensors.index.json. A file is only larger if one tensor is. Until they are whole they
// are in a folder with `.tmp` after its name; what a killed export left there is replaced. Throws
// like export_file, and FileError if the folder is not empty or another export writes to it.
void export_folder(const StoredCheckpoint& checkpoint, std::span<const std::string> names,
                   const std::filesystem::path& path, uint64_t max_file_size,
                   const ExportProgress& on_progress);

}  // namespace pipewright::checkpoint

#endif  // PIPEWRIGHT_CHECKPOINT_EXPORT_H_
