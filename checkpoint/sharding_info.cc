#include "pipewright/checkpoint/sharding_info.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "pipewright/checkpoint/in_backticks.h"
#include "pipewright/ir/counted.h"

namespace pipewright::checkpoint {
namespace {

using Json = nlohmann::json;

constexpr const char* kInfo = "DCP_SHARDING_INFO";
constexpr const char* kOffsets = "saved_offsets";

// The offset of one tensor; nullopt if `entry` is not {"saved_offsets": [...]} that fits.
std::optional<std::vector<int64_t>> read_offset(const Json& entry, const TensorSpec& tensor) {
  if (!entry.is_object() || !entry.contains(kOffsets)) return std::nullopt;
  const Json& numbers = entry[kOffsets];
  if (!numbers.is_array() || numbers.size() != tensor.shape.size()) return std::nullopt;
  std::vector<int64_t> offset;
  for (const Json& number : numbers) {
    if (!number.is_number_unsigned()) return std::nullopt;
    // Begin and size of a box add up to a size of the whole tensor.
    const auto begin = number.get<uint64_t>();
    if (begin > static_cast<uint64_t>(INT64_MAX - tensor.shape[offset.size()])) return std::nullopt;
    offset.push_back(static_cast<int64_t>(begin));
  }
  return offset;
}

}  // namespace

Metadata sharding_metadata(const SavedOffsets& offsets) {
  Json info = Json::object();
  for (const auto& [name, offset] : offsets) info[name] = {{kOffsets, offset}};
  return {{kInfo, info.dump()}, {"DCP_VERSION", "1.0"}, {"format", "pt"}};
}

std::optional<SavedOffsets> saved_offsets(const SafetensorsHeader& header,
                                          ir::Diagnostics* diagnostics) {
  const auto found = header.metadata.find(kInfo);
  SavedOffsets offsets;
  if (found == header.metadata.end()) {
    for (const StoredTensor& tensor : header.tensors)
      offsets[tensor.name].resize(tensor.shape.size());
    return offsets;
  }
  const Json info = Json::parse(found->second, nullptr, /*allow_exceptions=*/false);
  if (!info.is_object()) {
    diagnostics->error(ir::Rule::kShardingInfo, "DCP_SHARDING_INFO: expected a JSON object");
    return std::nullopt;
  }
  bool is_valid = true;
  for (const StoredTensor& tensor : header.tensors) {
    const auto offset =
        info.contains(tensor.name) ? read_offset(info[tensor.name], tensor) : std::nullopt;
    if (offset) {
      offsets[tensor.name] = *offset;
      continue;
    }
    is_valid = false;
    diagnostics->error(
        ir::Rule::kShardingInfo,
        fmt::format("DCP_SHARDING_INFO of tensor {}: expected {{\"saved_offsets\": [...]}} with {}",
                    in_backticks(tensor.name),
                    ir::counted(tensor.shape.size(), "number", "numbers")));
  }
  if (!is_valid) return std::nullopt;
  return offsets;
}

}  // namespace pipewright::checkpoint
