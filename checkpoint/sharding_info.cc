#include "pipewright/checkpoint/sharding_info.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <utility>
#include <variant>

#include "pipewright/checkpoint/in_backticks.h"
#include "pipewright/ir/printable.h"

namespace pipewright::checkpoint {
namespace {

using Json = nlohmann::json;

constexpr const char* kInfo = "DCP_SHARDING_INFO";
constexpr const char* kOffsets = "saved_offsets";
constexpr const char* kName = "logical_fqn";
constexpr const char* kShape = "global_shape";

// Numbers, one per dimension, which are not negative; nullopt if `json` is something else.
std::optional<std::vector<int64_t>> read_numbers(const Json& json, size_t dims) {
  if (!json.is_array() || json.size() != dims) return std::nullopt;
  std::vector<int64_t> numbers;
  for (const Json& number : json) {
    if (!number.is_number_unsigned() || number.get<uint64_t>() > uint64_t{INT64_MAX})
      return std::nullopt;
    numbers.push_back(number.get<int64_t>());
  }
  return numbers;
}

// What the entry of one tensor says; an error's text if it is not as in the header, or does not
// fit.
using InfoOrError = std::variant<PartInfo, std::string>;
InfoOrError read_info(const Json& entry, const TensorSpec& tensor) {
  const size_t dims = tensor.shape.size();
  const auto expected = [&](const char* key) {
    return fmt::format("expected {{\"{}\": [...]}} with {}", key,
                       ir::counted(dims, "number", "numbers"));
  };
  const auto offset =
      read_numbers(entry.is_object() ? entry.value(kOffsets, Json()) : Json(), dims);
  if (!offset) return expected(kOffsets);
  const Json name = entry.value(kName, Json(tensor.name));
  if (!name.is_string() || name.get_ref<const std::string&>().empty())
    return fmt::format("expected {{\"{}\": \"...\"}}, got {}", kName, in_backticks(name.dump()));
  PartInfo info{name, *offset, std::nullopt};
  if (entry.contains(kShape)) {
    info.whole_shape = read_numbers(entry[kShape], dims);
    if (!info.whole_shape) return expected(kShape);
  }
  for (size_t dim = 0; dim < dims; ++dim) {
    // Of a whole tensor whose size is not known, the offset and the size add up to one.
    const int64_t whole = info.whole_shape ? (*info.whole_shape)[dim] : INT64_MAX;
    if (tensor.shape[dim] <= whole && (*offset)[dim] <= whole - tensor.shape[dim]) continue;
    return fmt::format("dimension {}: expected {} elements from {} on to be within {}", dim,
                       tensor.shape[dim], (*offset)[dim], whole);
  }
  return info;
}

}  // namespace

Metadata sharding_metadata(const SavedOffsets& offsets) {
  Json info = Json::object();
  for (const auto& [name, offset] : offsets) info[name] = {{kOffsets, offset}};
  return {{kInfo, info.dump()}, {"DCP_VERSION", "1.0"}, {"format", "pt"}};
}

std::optional<std::vector<PartInfo>> part_infos(const SafetensorsHeader& header,
                                                ir::Diagnostics* diagnostics) {
  const auto found = header.metadata.find(kInfo);
  std::vector<PartInfo> infos;
  if (found == header.metadata.end()) {
    for (const StoredTensor& tensor : header.tensors)
      infos.push_back({tensor.name, std::vector<int64_t>(tensor.shape.size()), tensor.shape});
    return infos;
  }
  const Json json = Json::parse(found->second, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) {
    diagnostics->error(ir::Rule::kShardingInfo, "DCP_SHARDING_INFO: expected a JSON object");
    return std::nullopt;
  }
  for (const StoredTensor& tensor : header.tensors) {
    InfoOrError info = read_info(json.value(tensor.name, Json()), tensor);
    if (const std::string* error = std::get_if<std::string>(&info))
      diagnostics->error(ir::Rule::kShardingInfo, fmt::format("DCP_SHARDING_INFO of tensor {}: {}",
                                                              in_backticks(tensor.name), *error));
    else
      infos.push_back(std::get<PartInfo>(std::move(info)));
  }
  if (infos.size() != header.tensors.size()) return std::nullopt;
  return infos;
}

}  // namespace pipewright::checkpoint
