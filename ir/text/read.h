#ifndef PIPEWRIGHT_IR_TEXT_READ_H_
#define PIPEWRIGHT_IR_TEXT_READ_H_

#include <iosfwd>
#include <optional>
#include <span>
#include <string_view>

#include "pipewright/ir/diagnostic.h"
#include "pipewright/ir/text/parsed_schedule.h"
#include "pipewright/ir/text/shape.h"

// A schedule from a text of any format, and back.

namespace pipewright::ir {

enum class Format { kCsv, kPlan, kJson };

struct FormatInfo {
  Format format;
  std::string_view name;       // "csv"
  std::string_view extension;  // ".csv"
  std::string_view meaning;
  // Reads all of the text, or gives none and adds every error that there is.
  std::optional<ParsedSchedule> (*parse)(const Source&, Diagnostics*);
  // Writes what parse reads back as the same schedule.
  void (*print)(const AnySchedule&, std::ostream&);
};

// All formats.
std::span<const FormatInfo> formats();
const FormatInfo& info(Format format);

// The format that a file's extension names, else the one that its first bytes show.
Format detect_format(const Source& source);

// Reads a schedule in the format of its file and checks it against `expected`. None if there is any
// error.
std::optional<ParsedSchedule> read_schedule(const Source& source, const ExpectedShape& expected,
                                            Diagnostics* diagnostics);

}  // namespace pipewright::ir

#endif  // PIPEWRIGHT_IR_TEXT_READ_H_
