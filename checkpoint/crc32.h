#ifndef PIPEWRIGHT_CHECKPOINT_CRC32_H_
#define PIPEWRIGHT_CHECKPOINT_CRC32_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

// The CRC-32 of zlib, gzip and PNG, as Python's zlib.crc32. It finds every change of up to 32
// adjacent bits. Pure functions; any thread.

namespace pipewright::checkpoint {

// The checksum of `before`'s bytes followed by `bytes`.
uint32_t crc32(std::span<const std::byte> bytes, uint32_t before = 0);

// Eight hexadecimal digits: "cbf43926".
std::string crc32_text(uint32_t crc);
std::optional<uint32_t> parse_crc32(std::string_view text);

}  // namespace pipewright::checkpoint

#endif  // PIPEWRIGHT_CHECKPOINT_CRC32_H_
