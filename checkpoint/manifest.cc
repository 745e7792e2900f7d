#include "pipewright/checkpoint/manifest.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <utility>
#include <variant>

#include "pipewright/checkpoint/durable_file.h"
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

namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr std::string_view kFormat = "pipewright checkpoint";
constexpr int kVersion = 1;
constexpr std::string_view kChecksum = "\"checksum\": \"";
constexpr std::string_view kZeros = "00000000";

uint32_t crc32_of(std::string_view text) { return crc32(std::as_bytes(std::span(text))); }

// The text with zeros for its checksum; `*checksum` receives what was there.
std::string without_checksum(std::string text, std::string* checksum) {
  const size_t at = text.find(kChecksum);
  if (at == std::string::npos) return text;
  *checksum = text.substr(at + kChecksum.size(), kZeros.size());
  return text.replace(at + kChecksum.size(), checksum->size(), kZeros);
}

// A name of a file in the checkpoint's folder, not a path that leads out of it.
bool is_file_name(const std::string& name) {
  return !name.empty() && name != "." && name != ".." && name.find('/') == std::string::npos &&
         name.find('\0') == std::string::npos;
}

Manifest read(const OrderedJson& json) {
  Manifest manifest;
  // All fields, here and in manifest_text(): one more does not compile before it is in both.
  auto& [step, save_id, schedule, program_digest, mesh, files, tensors, state] = manifest;
  json.at("step").get_to(step);
  json.at("save_id").get_to(save_id);
  json.at("schedule").get_to(schedule);
  json.at("program_digest").get_to(program_digest);
  for (const OrderedJson& dim : json.at("mesh")) mesh.push_back({dim.at("name"), dim.at("size")});
  for (const OrderedJson& file : json.at("files")) {
    const auto crc = parse_crc32(file.at("crc32").get<std::string>());
    ManifestFile& added =
        files.emplace_back(ManifestFile{file.at("name"), file.at("size"), crc.value_or(0)});
    if (!crc || !is_file_name(added.name))
      throw std::runtime_error(
          fmt::format("file {}: expected the name of a file in the folder, "
                      "and eight hexadecimal digits",
                      in_backticks(added.name)));
  }
  for (const OrderedJson& tensor : json.at("tensors")) {
    const auto dtype = parse_dtype(tensor.at("dtype").get<std::string>());
    if (!dtype)
      throw std::runtime_error(fmt::format("expected a dtype, got {}", tensor.at("dtype").dump()));
    tensors.push_back({{tensor.at("name"), *dtype, tensor.at("shape")}, tensor.at("layout")});
  }
  json.at("state").get_to(state);
  return manifest;
}

}  // namespace

std::string manifest_text(const Manifest& manifest) {
  const auto& [step, save_id, schedule, program_digest, mesh, files, tensors, state] = manifest;
  OrderedJson json = {{"format", kFormat},
                      {"version", kVersion},
                      {"checksum", kZeros},
                      {"step", step},
                      {"save_id", save_id},
                      {"schedule", schedule},
                      {"program_digest", program_digest}};
  for (const char* list : {"mesh", "files", "tensors"}) json[list] = OrderedJson::array();
  for (const layout::MeshDim& dim : mesh)
    json["mesh"].push_back({{"name", dim.name}, {"size", dim.size}});
  for (const ManifestFile& file : files)
    json["files"].push_back(
        {{"name", file.name}, {"size", file.size}, {"crc32", crc32_text(file.crc32)}});
  for (const ManifestTensor& tensor : tensors)
    json["tensors"].push_back({{"name", tensor.name},
                               {"dtype", name(tensor.dtype)},
                               {"shape", tensor.shape},
                               {"layout", tensor.layout}});
  json["state"] = state;
  std::string text = json.dump(1) + "\n";
  return text.replace(text.find(kChecksum) + kChecksum.size(), kZeros.size(),
                      crc32_text(crc32_of(text)));
}

std::optional<Manifest> parse_manifest(const ir::Source& source, ir::Diagnostics* diagnostics) {
  const auto fail = [&](std::string message) {
    diagnostics->error(ir::Rule::kManifest, std::move(message));
    return std::nullopt;
  };
  const OrderedJson json = OrderedJson::parse(source.text, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded())
    return fail("expected a JSON object: the manifest is damaged or was cut off");
  if (!json.is_object() || json.value("format", OrderedJson()) != kFormat)
    return fail(fmt::format("expected \"format\": \"{}\"", kFormat));
  if (const OrderedJson version = json.value("version", OrderedJson()); version != kVersion)
    return fail(fmt::format("expected version {}, got {}", kVersion, version.dump()));
  std::string checksum;
  const std::string actual = crc32_text(crc32_of(without_checksum(source.text, &checksum)));
  if (checksum != actual)
    return fail(fmt::format("the manifest was changed: expected checksum {}, got {}",
                            in_backticks(checksum), actual));
  try {
    return read(json);
  } catch (const OrderedJson::exception& error) {
    return fail(error.what());
  } catch (const std::runtime_error& error) {
    return fail(error.what());
  }
}

}  // namespace pipewright::checkpoint
