#ifndef PIPEWRIGHT_IR_TEXT_READ_H_
#define PIPEWRIGHT_IR_TEXT_READ_H_

#include <iosfwd>
#include <optional>
#include <span>
#include <string_view>

#include "pipewright/ir/diagnostic.h"
#include "pipewright/ir/text/shape.h"

// Reads and writes schedules in any of the text formats: CSV, .plan, JSON.
//
//   const Source source{"1f1b.csv", text};
//   Diagnostics diagnostics;
//   const auto parsed = read_schedule(source, {.ranks = 4}, &diagnostics);
//   if (!parsed) std::cerr << render(diagnostics, &source, {});
//   find_format("plan")->print(parsed->schedule, std::cout);
//
// Pure functions; any thread.

namespace pipewright::ir {

struct Format {
  std::string_view name;       // "csv"
  std::string_view extension;  // ".csv"
  std::string_view meaning;    // one line, for help
  // Parses the whole text. Returns nullopt and adds all errors if it is not valid.
  std::optional<ParsedSchedule> (*parse)(const Source&, Diagnostics*);
  // Writes a text that parse reads back as the same schedule. A CSV does not store the name and the
  // lowering.
  void (*print)(const AnySchedule&, std::ostream&);
};

// All formats. Constant data.
std::span<const Format> formats();
// The format of that name, or null.
const Format* find_format(std::string_view name);

// Determines the format from the extension of the file's name, or else from its first bytes.
const Format& detect_format(const Source& source);

// Parses a file in its detected format and checks its shape against `expected`, where a CSV takes
// the slices from `expected`. Returns nullopt and adds errors, sorted by place, if there are any.
// The result refers to `source`, which must outlive it.
std::optional<ParsedSchedule> read_schedule(const Source& source, const ExpectedShape& expected,
                                            Diagnostics* diagnostics);

}  // namespace pipewright::ir

#endif  // PIPEWRIGHT_IR_TEXT_READ_H_
