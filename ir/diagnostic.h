#ifndef PIPEWRIGHT_IR_DIAGNOSTIC_H_
#define PIPEWRIGHT_IR_DIAGNOSTIC_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

// What is wrong with a user's input: a Diagnostic has the Rule that is broken, a message, a Place
// in the input's text (Source) or in a schedule, and a help.

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

// The rules that a schedule or its file can violate, each with a code such as PW006. The list is
// ir/rules.def. Constant data; safe to use from any thread.

enum class Rule : uint8_t {
#define PW_RULE(number, enumerator, summary, text) enumerator = number,
#include "pipewright/ir/rules.def"
#undef PW_RULE
};

struct RuleInfo {
  Rule rule;
  std::string_view summary;  // one line: the rule itself, which every valid schedule obeys
  std::string_view text;     // paragraphs, with a wrong and a fixed example
};

// All rules by number.
std::span<const RuleInfo> rules();
// The table row of a rule.
const RuleInfo& info(Rule rule);

// "PW006".
std::string code(Rule rule);
// The rule with that code, such as "PW042". Upper or lower case, `PW` and leading zeros may be left
// out: "pw42", "42". Returns nullopt if there is none.
std::optional<Rule> rule_of_code(std::string_view code);

// Diagnostics: errors found in a user's input, as values. Parsers and the verifier collect all of
// them and print nothing; pipewright/ir/text/render.h formats them for people and
// programs.
//
//   Diagnostic& error = diagnostics->error(Rule::kRowCount, "expected 2 rows, got 1", place);
//   error.notes.push_back({"declared here", header_place});
//   error.help = "add a row for rank 1";
//
// A message stands alone, in lower case and without a full stop, with actions and names in
// backticks; it says what is wrong, then "expected X, got Y" where that applies.

// Additional information about a diagnostic, usually another place.
struct Note {
  std::string message;
  Place place;
};

struct Diagnostic {
  Rule rule;
  std::string message;
  Place place;
  std::vector<Note> notes;
  std::string help;  // how to fix it; may be empty
};

// The diagnostics of one run. Stores the first kMaxKept and counts the rest, so that a file with
// millions of errors does not exhaust memory. Not thread-safe.
class Diagnostics {
 public:
  static constexpr size_t kMaxKept = 10000;

  // Adds an error. The reference, for adding notes and help, is valid until the next call.
  Diagnostic& error(Rule rule, std::string message, Place place = {});
  // Adds all errors of `other`, in their order.
  void append(Diagnostics&& other);

  bool has_errors() const { return total_ > 0; }
  std::span<const Diagnostic> kept() const { return kept_; }
  // The number of errors added, kept or not.
  size_t total() const { return total_; }

  // Calls `place_of` for each place, notes included, that has a rank and a step but no offset, and
  // replaces it by the result. Ascending by rank and step.
  void find_places(const std::function<Place(int rank, int step)>& place_of);

  // Sorts by line and column, then by rank and step. Diagnostics without a place come first.
  void sort();

 private:
  std::vector<Diagnostic> kept_;
  Diagnostic overflow_;
  size_t total_ = 0;
};

// `text` in backticks, for messages: cut after 40 characters, with control characters and invalid
// UTF-8 escaped (pipewright/ir/printable.h).
std::string backticked(std::string_view text);

}  // namespace pipewright::ir

#endif  // PIPEWRIGHT_IR_DIAGNOSTIC_H_
