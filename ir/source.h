#ifndef PIPEWRIGHT_IR_SOURCE_H_
#define PIPEWRIGHT_IR_SOURCE_H_

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

// The text of an input file, and places (line and column) in it, for diagnostics.

namespace pipewright::ir {

// Where something is: in a file, in a schedule, or both. Fields that do not apply are unset.
struct Place {
  std::optional<int> rank;  // from 0
  std::optional<int> step;  // index in the rank's row; idle slots count
  // Byte offset in the text. Set if and only if line and column are.
  std::optional<size_t> offset;
  size_t line = 0;    // from 1
  size_t column = 0;  // in characters, from 1; a byte order mark does not count
  size_t length = 0;  // in characters

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
  std::string name;  // as shown in errors: "plan.csv", "<stdin>"
  std::string text;  // the bytes of the file, unchanged

  // Size in bytes of the UTF-8 byte order mark at the start: 3 or 0.
  size_t mark_size() const { return text.starts_with("\xEF\xBB\xBF") ? 3 : 0; }
};

// Converts byte offsets to lines and columns. Queries with ascending offsets cost the length of the
// text in total; a query before the previous one rescans from the last start_line(). Not
// thread-safe.
class PlaceCursor {
 public:
  explicit PlaceCursor(const Source& source);

  // Declares that `offset` is the first byte of line number `line`, so that scanning restarts
  // there.
  void start_line(size_t line, size_t offset);

  // The place of `length` bytes at `offset`, which must not be before the last start_line().
  Place at(size_t offset, size_t length);

 private:
  std::string_view text_;
  size_t base_line_, base_offset_;
  size_t line_, column_, offset_;
};

}  // namespace pipewright::ir

#endif  // PIPEWRIGHT_IR_SOURCE_H_
