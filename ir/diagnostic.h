#ifndef PIPEWRIGHT_IR_DIAGNOSTIC_H_
#define PIPEWRIGHT_IR_DIAGNOSTIC_H_

#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "pipewright/ir/rules.h"
#include "pipewright/ir/source.h"

// Diagnostics: errors found in a user's input, as values. Parsers and the verifier collect all of
// them and print nothing; pipewright/ir/text/render.h formats them for people and
// pipewright/ir/text/diagnostic_json.h for programs.
//
//   Diagnostic& error = diagnostics->error(Rule::kRowCount, "expected 2 rows, got 1", place);
//   error.notes.push_back({"declared here", header_place});
//   error.help = "add a row for rank 1";
//
// A message stands alone, in lower case and without a full stop, with actions and names in
// backticks; it says what is wrong, then "expected X, got Y" where that applies.

namespace pipewright::ir {

enum class Severity { kError };

std::string_view name(Severity severity);

// Additional information about a diagnostic, usually another place.
struct Note {
  std::string message;
  Place place;
};

struct Diagnostic {
  Rule rule;
  Severity severity = Severity::kError;
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
