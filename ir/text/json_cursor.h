#ifndef PIPEWRIGHT_IR_TEXT_JSON_CURSOR_H_
#define PIPEWRIGHT_IR_TEXT_JSON_CURSOR_H_

#include <cstddef>
#include <nlohmann/json.hpp>
#include <string_view>

#include "pipewright/ir/diagnostic.h"
#include "pipewright/ir/source.h"

namespace pipewright::ir {

// Feeds a JSON text to a handler of parse events and says where in the text each event is, which
// the events themselves do not. Include it in .cc files only: nlohmann's header is large.
//
//   JsonCursor cursor(source);
//   const bool complete = cursor.parse(&handler);  // whose events call cursor.string() and the
//   like
//
// Finding places costs the length of the text in all. Not for two threads at once.
class JsonCursor {
 public:
  // `source` must outlive the cursor.
  explicit JsonCursor(const Source& source);

  // False if the text is not JSON, or an event returned false. `events` gets each syntax error in
  // its parse_error, and may hand it to report().
  bool parse(nlohmann::json_sax<nlohmann::json>* events);

  // Inside an event: the end of its token, as an offset.
  size_t token_end() const { return static_cast<size_t>(position_ - text_.data()); }
  // The place of a token of `size` bytes: a brace or a bracket.
  Place token(size_t size) { return places_.at(token_end() - size, size); }
  // The place of a key, or of a string, quotes included.
  Place string();
  // The place of a number, true, false or null.
  Place word();
  // The place of bytes that come after all that was asked for before.
  Place at(size_t offset, size_t length) { return places_.at(offset, length); }

  // Adds PW090 for a syntax error.
  void report(const nlohmann::json::exception& error, Diagnostics* diagnostics);

 private:
  const Source& source_;
  std::string_view text_;
  const char* position_;
  PlaceCursor places_;
};

}  // namespace pipewright::ir

#endif  // PIPEWRIGHT_IR_TEXT_JSON_CURSOR_H_
