#include "pipewright/ir/source.h"

#include <algorithm>

namespace pipewright::ir {
namespace {

// In UTF-8, a character is a leading byte and up to three continuation bytes 10xxxxxx.
bool starts_character(char byte) { return (static_cast<unsigned char>(byte) & 0xC0) != 0x80; }

}  // namespace

PlaceCursor::PlaceCursor(const Source& source) : text_(source.text) {
  start_line(1, source.mark_size());
}

void PlaceCursor::start_line(size_t line, size_t offset) {
  line_ = base_line_ = line;
  offset_ = base_offset_ = offset;
  column_ = 1;
}

Place PlaceCursor::at(size_t offset, size_t length) {
  offset = std::min(offset, text_.size());
  if (offset < offset_) start_line(base_line_, base_offset_);
  for (; offset_ < offset; ++offset_) {
    if (text_[offset_] == '\n') {
      ++line_;
      column_ = 1;
    } else if (starts_character(text_[offset_])) {
      ++column_;
    }
  }
  Place place;
  place.offset = offset;
  place.line = line_;
  place.column = column_;
  place.length =
      static_cast<size_t>(std::ranges::count_if(text_.substr(offset, length), starts_character));
  return place;
}

}  // namespace pipewright::ir
