#ifndef PIPEWRIGHT_CHECKPOINT_MANIFEST_H_
#define PIPEWRIGHT_CHECKPOINT_MANIFEST_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "pipewright/checkpoint/safetensors.h"
#include "pipewright/comms/mesh_layout.h"
#include "pipewright/ir/diagnostic.h"

// The manifest of a checkpoint, `pipewright.json`: what was saved, and which files are part of it.
// It is written last, so a folder with a manifest holds everything that the manifest lists.
//
//   {"format": "pipewright checkpoint", "version": 1,
//    "checksum": "5d2f8a01", "step": 100, "save_id": "d1b8c0e2f7a45933",
//    "schedule": "1F1B", "program_digest": "...", "mesh": [{"name": "pp", "size": 2}],
//    "files": [{"name": "shard-00001-model-00001-of-00001.safetensors", "size": 4096,
//               "crc32": "0f6c3c6e"}],
//    "tensors": [{"name": "w", "dtype": "F32", "shape": [8, 4], "layout": "..."}],
//    "state": {"lr": "0.001"}}
//
// `checksum` is the CRC-32 of the text with eight zeros in its place. Pure functions; any thread.

namespace pipewright::checkpoint {

inline constexpr const char* kManifestName = "pipewright.json";

struct ManifestFile {
  std::string name;
  uint64_t size = 0;
  uint32_t crc32 = 0;  // of the whole file

  friend bool operator==(const ManifestFile&, const ManifestFile&) = default;
};

struct ManifestTensor : TensorSpec {  // of the whole model
  std::string layout;                 // comms::Layout::text(), or empty

  friend bool operator==(const ManifestTensor&, const ManifestTensor&) = default;
};

struct Manifest {
  int64_t step = 0;
  std::string save_id;  // also in the metadata of each file, as kSaveIdKey
  std::string schedule;
  std::string program_digest;
  std::vector<comms::MeshDim> mesh;  // the one that saved
  std::vector<ManifestFile> files;
  std::vector<ManifestTensor> tensors;
  std::map<std::string, std::string> state;  // scalars, generator states, the data position, ...

  friend bool operator==(const Manifest&, const Manifest&) = default;
};

// The key under which a shard's metadata name the save that it belongs to, so that a shard of
// another checkpoint is found out without reading its data.
inline constexpr const char* kSaveIdKey = "pipewright_save_id";

std::string manifest_text(const Manifest& manifest);

// Adds an error (PW110) and returns nullopt if the text is not a manifest of version 1, or
// its checksum differs.
std::optional<Manifest> parse_manifest(const ir::Source& source, ir::Diagnostics* diagnostics);

}  // namespace pipewright::checkpoint

#endif  // PIPEWRIGHT_CHECKPOINT_MANIFEST_H_
