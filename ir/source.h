#ifndef PIPEWRIGHT_IR_SOURCE_H_
#define PIPEWRIGHT_IR_SOURCE_H_

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

// The text of a file, and places in it.

namespace pipewright::ir {

// Where something is: in a file, in a schedule, or both. What does not apply is not set.
struct Place {
  std::optional<int> rank;  // from 0
  std::optional<int> step;  // index in the rank's row, idle slots included
  // Bytes from the start of the text; set together with line and column.
  std::optional<size_t> offset;
  size_t line = 0;    // from 1
  size_t column = 0;  // characters from the start of the line, from 1; a byte order mark is none
  size_t length = 0;  // characters

  friend bool operator==(const Place&, const Place&) = default;
};

// The place of an action in a schedule.
inline Place place_at(size_t rank, size_t step) {
  Place place;
  place.rank = static_cast<int>(rank);
  place.step = static_cast<int>(step);
  return place;
}

struct Source {
  std::string name;  // as errors show it: "plan.csv", "<stdin>"
  std::string text;  // bytes as they are in the file

  // Bytes of the UTF-8 byte order mark at the start: 3 or 0.
  size_t mark_size() const { return text.starts_with("\xEF\xBB\xBF") ? 3 : 0; }
};

// Turns offsets into lines and columns. Going forward through a text costs its length in all; going
// back starts over from the last `start_line`. Not for two threads at once.
class PlaceCursor {
 public:
  explicit PlaceCursor(const Source& source);

  // From here on, `offset` is the first byte of line number `line`.
  void start_line(size_t line, size_t offset);

  // The place of `length` bytes at `offset`, which is not before the last start_line.
  Place at(size_t offset, size_t length);

 private:
  std::string_view text_;
  size_t base_line_, base_offset_;
  size_t line_, column_, offset_;
};

}  // namespace pipewright::ir

#endif  // PIPEWRIGHT_IR_SOURCE_H_
