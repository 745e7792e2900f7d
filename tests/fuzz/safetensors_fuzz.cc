// Fuzz target for safetensors files: on any bytes the parser either returns a header whose tensors
// tile the data, or reports errors with places inside the header. A valid header can be laid out
// and written again, and its tensors can be placed.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "pipewright/checkpoint/manifest.h"
#include "pipewright/checkpoint/safetensors.h"
#include "pipewright/ir/text/render.h"

namespace {

using namespace pipewright;
using checkpoint::StoredTensor;

void require(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "violated: %s\n", what);
  std::abort();
}

void require_places(const ir::Diagnostics& diagnostics, const ir::Source& source) {
  for (const ir::Diagnostic& diagnostic : diagnostics.kept()) {
    if (diagnostic.place.offset)
      require(*diagnostic.place.offset <= source.text.size(), "a place is inside the header");
  }
  require(render(diagnostics, &source, {}).size() >= diagnostics.kept().size(),
          "every error is shown");
  require(!diagnostics_json(diagnostics).empty(), "errors are JSON");
}

void require_tiling(const checkpoint::SafetensorsHeader& header, size_t file_size) {
  uint64_t end = 0;
  for (const StoredTensor& tensor : header.tensors) {
    require(tensor.begin == end, "a tensor begins where the one before it ends");
    end = tensor.end;
    require(bytes_of(tensor.dtype, tensor.shape) == tensor.end - tensor.begin,
            "a tensor has the bytes of its shape");
  }
  require(header.data_begin + end == file_size, "the last tensor ends with the file");
}

std::vector<StoredTensor> by_name(std::vector<StoredTensor> tensors) {
  std::ranges::sort(tensors, {}, &StoredTensor::name);
  return tensors;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view file(reinterpret_cast<const char*>(data), size);
  ir::Diagnostics diagnostics;
  const auto parsed = checkpoint::parse_safetensors("fuzz", file, &diagnostics);
  require(parsed.header.has_value() != diagnostics.has_errors(), "either a header or errors");
  require_places(diagnostics, parsed.text);
  if (!parsed.header) return 0;
  require_tiling(*parsed.header, size);

  const auto laid_out = checkpoint::lay_out_safetensors(
      {parsed.header->tensors.begin(), parsed.header->tensors.end()}, parsed.header->metadata);
  const std::string written =
      safetensors_header_bytes(laid_out) + std::string(laid_out.data_size(), '\0');
  ir::Diagnostics none;
  const auto again = checkpoint::parse_safetensors("fuzz", written, &none);
  require(again.header.has_value(), "what is written is valid");
  require(by_name(again.header->tensors) == by_name(laid_out.tensors), "and the same");
  require(again.header->metadata == parsed.header->metadata, "as are the metadata");

  ir::Diagnostics misplaced;
  const auto infos = part_infos(*parsed.header, &misplaced);
  require(infos.has_value() != misplaced.has_errors(), "either what parts are or errors");
  if (!infos) return 0;
  for (size_t index = 0; index < infos->size(); ++index) {
    const checkpoint::PartInfo& info = (*infos)[index];
    const std::vector<int64_t>& sizes = parsed.header->tensors[index].shape;
    require(info.offset.size() == sizes.size(), "an offset has the dimensions of its tensor");
    for (size_t dim = 0; dim < sizes.size(); ++dim) {
      const int64_t whole = info.whole_shape ? info.whole_shape->at(dim) : INT64_MAX;
      require(
          info.offset[dim] >= 0 && sizes[dim] <= whole && info.offset[dim] <= whole - sizes[dim],
          "a part is within its tensor");
    }
  }
  return 0;
}
