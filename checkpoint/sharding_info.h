#ifndef PIPEWRIGHT_CHECKPOINT_SHARDING_INFO_H_
#define PIPEWRIGHT_CHECKPOINT_SHARDING_INFO_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "pipewright/checkpoint/safetensors.h"

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

}  // namespace pipewright::checkpoint

#endif  // PIPEWRIGHT_CHECKPOINT_SHARDING_INFO_H_
