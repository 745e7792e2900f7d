#ifndef PIPEWRIGHT_CHECKPOINT_MANIFEST_H_
#define PIPEWRIGHT_CHECKPOINT_MANIFEST_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "pipewright/checkpoint/safetensors.h"
#include "pipewright/ir/diagnostic.h"
#include "pipewright/layout/layout.h"

// Where the tensors of a safetensors file lie in the tensors of the whole model: metadata that
// PyTorch's distributed checkpoints (HuggingFaceStorageWriter) store as JSON text.
//
//   "__metadata__": {"DCP_SHARDING_INFO": "{\"w\": {\"saved_offsets\": [4, 0]}}",
//                    "DCP_VERSION": "1.0", "format": "pt"}
//
// Since 2026, PyTorch's main branch also writes the shape of the whole tensor, and its name where
// the one in the file differs, as of several parts in one file:
//
//   {"w.__dcp_shard_1": {"logical_fqn": "w", "saved_offsets": [4, 0], "global_shape": [8, 3]}}
//
// A file without this metadata has whole tensors. Pure functions; any thread.

namespace pipewright::checkpoint {

// The index of a tensor's first element in the whole tensor, by name.
using SavedOffsets = std::map<std::string, std::vector<int64_t>>;

// The metadata of a file with parts of tensors.
Metadata sharding_metadata(const SavedOffsets& offsets);

// What a file says about one of its tensors.
struct PartInfo {
  std::string tensor;           // its name in the model
  std::vector<int64_t> offset;  // of its first element in the whole tensor
  // The shape of the whole tensor; nullopt if the file does not say it.
  std::optional<std::vector<int64_t>> whole_shape;
};

// One for each tensor of a file, in the order of the header. Adds an error (PW104) and returns
// nullopt if the text is not as above, a tensor is not in it, an offset or a shape has a wrong
// number of dimensions, or a tensor is not within its whole shape.
std::optional<std::vector<PartInfo>> part_infos(const SafetensorsHeader& header,
                                                ir::Diagnostics* diagnostics);

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

inline constexpr const char* kManifestName = "pipewright.json";

struct ManifestFile {
  std::string name;
  uint64_t size = 0;
  uint32_t crc32 = 0;  // of the whole file

  friend bool operator==(const ManifestFile&, const ManifestFile&) = default;
};

struct ManifestTensor : TensorSpec {  // of the whole model
  std::string layout;                 // layout::Layout::text(), or empty

  friend bool operator==(const ManifestTensor&, const ManifestTensor&) = default;
};

struct Manifest {
  int64_t step = 0;
  std::string save_id;  // also in the metadata of each file, as kSaveIdKey
  std::string schedule;
  std::string program_digest;
  std::vector<layout::MeshDim> mesh;  // the one that saved
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
