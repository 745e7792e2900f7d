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

// What parsers and the verifier have to say about a schedule: values, collected and never printed
// by them. ir/render.h prints them for people, ir/diagnostic_json.h for programs.

namespace pipewright::ir {

enum class Severity { kError };

std::string_view name(Severity severity);

// Something else that helps to understand a diagnostic.
struct Note {
  std::string message;
  Place place;
};

struct Diagnostic {
  Rule rule;
  Severity severity = Severity::kError;
  std::string message;  // stands alone; lower case, no full stop, actions in backticks
  Place place;
  std::vector<Note> notes;
  std::string help;  // how to mend it; may be empty
};

// A list that stops growing at kMaxKept, so that a hopeless file cannot fill the memory, but counts
// on. Not for two threads at once.
class Diagnostics {
 public:
  static constexpr size_t kMaxKept = 10000;

  // Adds an error. The reference, for notes and help, is good until the next call.
  Diagnostic& error(Rule rule, std::string message, Place place = {});

  bool has_errors() const { return total_ > 0; }
  std::span<const Diagnostic> kept() const { return kept_; }
  // All that were added, kept or not.
  size_t total() const { return total_; }

  // Asks for the place in a file of each rank and step that has none yet, notes included.
  void find_places(const std::function<Place(int rank, int step)>& place_of);

  // By place in the file, then by rank and step; what has no place stays first.
  void sort();

 private:
  std::vector<Diagnostic> kept_;
  Diagnostic overflow_;
  size_t total_ = 0;
};

// `text` in backticks, for messages: shortened to some 40 characters, with control characters and
// bytes that are not UTF-8 shown as \x1B.
std::string backticked(std::string_view text);

}  // namespace pipewright::ir

#endif  // PIPEWRIGHT_IR_DIAGNOSTIC_H_
