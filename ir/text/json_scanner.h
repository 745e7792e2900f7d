#ifndef PIPEWRIGHT_IR_TEXT_JSON_SCANNER_H_
#define PIPEWRIGHT_IR_TEXT_JSON_SCANNER_H_

#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "pipewright/ir/diagnostic.h"

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

// Reads JSON as a stream of events, for readers that need no tree of values. A reader can skip an
// array or object of any depth. During an event, JsonCursor has its place. Include it in .cc files
// only.

enum class JsonKind { kNull, kBoolean, kNumber, kString, kArray, kObject };

// For messages: "null", "true or false", "a number", "a string", "an array", "an object".
std::string_view name(JsonKind kind);

// Receives the events of one text, in document order. scalar() and key() stop the scan by returning
// false.
class JsonEvents {
 public:
  virtual ~JsonEvents() = default;

  // A null, boolean, number or string. `text` is a string's contents, or else the value as text.
  virtual bool scalar(JsonKind kind, const std::string& text) = 0;
  // A key of the object that was entered last.
  virtual bool key(const std::string& key) = 0;
  // The start of an array or object. Returns whether to enter it; otherwise everything in it is
  // skipped, and leave() is not called.
  virtual bool enter(JsonKind kind) = 0;
  // The end of an array or object that was entered.
  virtual void leave(JsonKind kind) = 0;
};

// Scans the text of `cursor`. Returns true if it is well-formed and no event stopped the scan. Adds
// a syntax error to the diagnostics (PW090). Linear in the size of the text.
bool scan_json(JsonCursor* cursor, JsonEvents* events, Diagnostics* diagnostics);

// Why a text is not JSON, and the bytes that are wrong.
//
//   {"version": 1,}     expected a key in double quotes, got `}`
//   {"version": 01}     expected a number without leading zeros, got `01`
struct JsonSyntaxError {
  std::string message;
  size_t offset, length;
};

// Whether a letter can be part of a number, true, false or null, or of a misspelt one.
bool is_json_word_letter(char letter);

// The token that the byte before `end` belongs to, as [begin, end): a string, a number, a word, or
// one byte. Empty at the end of the text.
struct JsonToken {
  size_t begin, end;
};
JsonToken json_token_at(std::string_view text, size_t end);

// Puts an error of nlohmann's parser into the words of our diagnostics. `what` is its message, and
// `text[end - 1]` the last byte that it read; `end` is one more than the size if it read past the
// end. A pure function.
JsonSyntaxError json_syntax_error(std::string_view text, size_t end, std::string_view what);

}  // namespace pipewright::ir

#endif  // PIPEWRIGHT_IR_TEXT_JSON_SCANNER_H_
