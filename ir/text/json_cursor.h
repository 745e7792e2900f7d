#ifndef PIPEWRIGHT_IR_TEXT_JSON_CURSOR_H_
#define PIPEWRIGHT_IR_TEXT_JSON_CURSOR_H_

#include <cstddef>
#include <nlohmann/json.hpp>
#include <string_view>

#include "pipewright/ir/diagnostic.h"
#include "pipewright/ir/source.h"

namespace pipewright::ir {

// Runs nlohmann's JSON parser over a text and reports the place of each parse event, which the
// events themselves do not contain. Include it in .cc files only: nlohmann's header is large.
//
//   JsonCursor cursor(source);
//   const bool complete = cursor.parse(&handler);  // a handler's events call cursor.string() etc.
//
// The place functions are for use inside an event and refer to its token. Finding places costs the
// length of the text in total. Not thread-safe.
class JsonCursor {
 public:
  // `source` must outlive the cursor.
  explicit JsonCursor(const Source& source);

  // Returns false if the text is not JSON or an event returned false. `events` receives a syntax
  // error as parse_error(), which can pass it to report().
  bool parse(nlohmann::json_sax<nlohmann::json>* events);

  // The offset after the token.
  size_t token_end() const { return static_cast<size_t>(position_ - text_.data()); }
  // The place of a token of `size` bytes: a brace or a bracket.
  Place token(size_t size) { return places_.at(token_end() - size, size); }
  // The place of a key or a string, quotes included.
  Place string();
  // The place of a number, true, false or null.
  Place word();
  // The place of `length` bytes at `offset`. Ascending offsets are cheap (PlaceCursor).
  Place at(size_t offset, size_t length) { return places_.at(offset, length); }

  // Adds a syntax error to the diagnostics (PW090). `read` is the first argument of parse_error():
  // how many bytes the parser had read, counting the end of the text as one.
  void report(size_t read, const nlohmann::json::exception& error, Diagnostics* diagnostics);

 private:
  const Source& source_;
  std::string_view text_;
  const char* position_;  // the first byte that the parser has not consumed
  PlaceCursor places_;
};

}  // namespace pipewright::ir

#endif  // PIPEWRIGHT_IR_TEXT_JSON_CURSOR_H_
