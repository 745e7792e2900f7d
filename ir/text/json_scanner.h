#ifndef PIPEWRIGHT_IR_TEXT_JSON_SCANNER_H_
#define PIPEWRIGHT_IR_TEXT_JSON_SCANNER_H_

#include <string>
#include <string_view>

#include "pipewright/ir/diagnostic.h"
#include "pipewright/ir/text/json_cursor.h"

// Reads JSON as a stream of events, for readers that need no tree of values. A reader can skip an
// array or object of any depth. During an event, JsonCursor has its place. Include it in .cc files
// only.

namespace pipewright::ir {

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

}  // namespace pipewright::ir

#endif  // PIPEWRIGHT_IR_TEXT_JSON_SCANNER_H_
