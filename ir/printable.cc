#include "pipewright/ir/printable.h"

#include <cstdint>

namespace pipewright::ir {
namespace {

// Size in bytes of the well-formed UTF-8 character (RFC 3629) at the start of `text`, or 0.
size_t character_size(std::string_view text) {
  const auto byte = [&](size_t index) { return static_cast<uint8_t>(text[index]); };
  const uint8_t first = byte(0);
  if (first < 0x80) return 1;
  const size_t size = first >= 0xC2 && first < 0xE0   ? 2
                      : first >= 0xE0 && first < 0xF0 ? 3
                      : first >= 0xF0 && first < 0xF5 ? 4
                                                      : 0;
  if (size == 0 || text.size() < size) return 0;
  for (size_t index = 1; index < size; ++index) {
    if ((byte(index) & 0xC0) != 0x80) return 0;
  }
  // Overlong encodings, surrogates, and code points above U+10FFFF.
  if (first == 0xE0 && byte(1) < 0xA0) return 0;
  if (first == 0xED && byte(1) >= 0xA0) return 0;
  if (first == 0xF0 && byte(1) < 0x90) return 0;
  if (first == 0xF4 && byte(1) >= 0x90) return 0;
  return size;
}

bool is_control(std::string_view character) {
  const uint8_t first = static_cast<uint8_t>(character[0]);
  if (character.size() == 1) return first < 0x20 || first == 0x7F;
  return character.size() == 2 && first == 0xC2 &&
         static_cast<uint8_t>(character[1]) < 0xA0;  // U+0080 to U+009F
}

}  // namespace

std::string take_printable(std::string_view* text) {
  const size_t size = character_size(*text);
  const std::string_view character = text->substr(0, size == 0 ? 1 : size);
  text->remove_prefix(character.size());
  if (size != 0 && !is_control(character)) return std::string(character);
  std::string shown;
  for (const char raw : character) {
    constexpr char kDigits[] = "0123456789ABCDEF";
    const auto byte = static_cast<uint8_t>(raw);
    shown += {'\\', 'x', kDigits[byte >> 4], kDigits[byte & 15]};
  }
  return shown;
}

std::string printable(std::string_view text) {
  std::string shown;
  while (!text.empty()) shown += take_printable(&text);
  return shown;
}

}  // namespace pipewright::ir
