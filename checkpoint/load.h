#ifndef PIPEWRIGHT_CHECKPOINT_LOAD_H_
#define PIPEWRIGHT_CHECKPOINT_LOAD_H_

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "pipewright/checkpoint/safetensors.h"
#include "pipewright/checkpoint/save.h"
#include "pipewright/checkpoint/stored_checkpoint.h"
#include "pipewright/layout/layout.h"

// Loading, the counterpart of save.h: each rank reads the bytes that it needs, whatever world saved
// them.
//
//   const LatestCheckpoint latest =
//       *open_latest_on_all("ckpt", rank, exchange, warn, Verify::kData);
//   load(latest.checkpoint, places, /*is_ignored=*/nullptr, exchange);
//
// All functions are collective, and throw std::runtime_error on all ranks if one of them fails on a
// rank; what `exchange` throws passes through. Any thread.

namespace pipewright::checkpoint {

// What of a checkpoint is checked before it is loaded.
enum class Verify {
  kStructure,  // all but the data
  kData,       // also the checksums of a checkpoint with a manifest: ranks share the reading, so
               // that each file is read once more than load() needs
};

// Opens the same checkpoint on all ranks: a path that StoredCheckpoint::open() takes. The error
// says what is wrong, file by file.
StoredCheckpoint open_on_all(const std::filesystem::path& path, int rank, const Exchange& exchange,
                             Verify verify = Verify::kStructure);

// Opens on all ranks the first of newest_checkpoints() that is whole. Returns nullopt if there is
// none, or no folder. On rank 0, `warn` receives what is wrong with checkpoints that were passed
// over. Throws if there are checkpoints, but none is whole.
std::optional<LatestCheckpoint> open_latest_on_all(
    const std::filesystem::path& folder, int rank, const Exchange& exchange,
    const std::function<void(const std::string& text)>& warn, Verify verify = Verify::kStructure);

// Where a part of a tensor of the whole model goes.
struct TensorPlace {
  std::string name;
  DType dtype;
  std::vector<int64_t> shape;  // of the whole tensor
  Box box;                     // may be empty
  std::span<std::byte> data;   // row-major, little-endian
};

// Fills the places of all ranks. They must have all tensors of the checkpoint between them, but for
// those whose names are ignored (null: none is), with the same types and shapes. If they do not,
// nothing is read, and the error lists everything that is missing, unexpected or different.
void load(const StoredCheckpoint& checkpoint, std::span<const TensorPlace> places,
          const std::function<bool(const std::string& name)>& is_ignored, const Exchange& exchange);

}  // namespace pipewright::checkpoint

#endif  // PIPEWRIGHT_CHECKPOINT_LOAD_H_
