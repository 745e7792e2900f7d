#include "pipewright/checkpoint/crc32.h"

#include <fmt/format.h>
#include <libdeflate.h>

#include <charconv>

namespace pipewright::checkpoint {

uint32_t crc32(std::span<const std::byte> bytes, uint32_t before) {
  // Of no bytes, it takes a null pointer for the start of a checksum.
  return bytes.empty() ? before : libdeflate_crc32(before, bytes.data(), bytes.size());
}

std::string crc32_text(uint32_t crc) { return fmt::format("{:08x}", crc); }

std::optional<uint32_t> parse_crc32(std::string_view text) {
  uint32_t crc = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), crc, 16);
  if (error != std::errc() || crc32_text(crc) != text) return std::nullopt;
  return crc;
}

}  // namespace pipewright::checkpoint
