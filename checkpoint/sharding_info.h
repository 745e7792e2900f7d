#ifndef PIPEWRIGHT_CHECKPOINT_SHARDING_INFO_H_
#define PIPEWRIGHT_CHECKPOINT_SHARDING_INFO_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "pipewright/checkpoint/safetensors.h"

// Where the tensors of a safetensors file lie in the tensors of the whole model: metadata that
// PyTorch's distributed checkpoints (HuggingFaceStorageWriter, torch 2.11) store as JSON text.
//
//   "__metadata__": {"DCP_SHARDING_INFO": "{\"w\": {\"saved_offsets\": [4, 0]}}",
//                    "DCP_VERSION": "1.0", "format": "pt"}
//
// A file without it has whole tensors. Pure functions; any thread.

namespace pipewright::checkpoint {

// The index of a tensor's first element in the whole tensor, by name.
using SavedOffsets = std::map<std::string, std::vector<int64_t>>;

// The metadata of a file with parts of tensors.
Metadata sharding_metadata(const SavedOffsets& offsets);

// The offset of each tensor of a file, from its metadata; zeros if the file has no such metadata.
// Adds an error (PW104) and returns nullopt if the text is not as above, a tensor is not in it, or
// an offset has a wrong number of dimensions.
std::optional<SavedOffsets> saved_offsets(const SafetensorsHeader& header,
                                          ir::Diagnostics* diagnostics);

}  // namespace pipewright::checkpoint

#endif  // PIPEWRIGHT_CHECKPOINT_SHARDING_INFO_H_
