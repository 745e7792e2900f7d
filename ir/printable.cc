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

// The code point of a well-formed character.
char32_t code_point(std::string_view character) {
  constexpr uint8_t kLeadBits[] = {0, 0x7F, 0x1F, 0x0F, 0x07};  // by size
  char32_t code = static_cast<uint8_t>(character[0]) & kLeadBits[character.size()];
  for (const char byte : character.substr(1))
    code = code << 6 | (static_cast<uint8_t>(byte) & 0x3F);
  return code;
}

// Whether a character is shown as an escape: it would break the line, reorder the text around it,
// or make XML malformed.
bool is_hidden(char32_t code) {
  const auto within = [&](char32_t first, char32_t last) { return first <= code && code <= last; };
  const bool control = code < 0x20 || within(0x7F, 0x9F);
  const bool separator = within(0x2028, 0x2029);
  const bool bidirectional =
      code == 0x061C || within(0x200E, 0x200F) || within(0x202A, 0x202E) || within(0x2066, 0x2069);
  const bool noncharacter = within(0xFDD0, 0xFDEF) || (code & 0xFFFE) == 0xFFFE;
  return control || separator || bidirectional || noncharacter;
}

}  // namespace

std::string take_printable(std::string_view* text) {
  const size_t size = character_size(*text);
  const std::string_view character = text->substr(0, size == 0 ? 1 : size);
  text->remove_prefix(character.size());
  if (size != 0 && !is_hidden(code_point(character))) return std::string(character);
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
