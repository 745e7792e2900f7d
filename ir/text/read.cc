#include "pipewright/ir/text/read.h"

#include <fmt/format.h>

#include <algorithm>

#include "pipewright/ir/text/action_text.h"
#include "pipewright/ir/text/csv.h"
#include "pipewright/ir/text/plan.h"
#include "pipewright/ir/text/scan_action.h"
#include "pipewright/ir/text/schedule_json.h"

namespace pipewright::ir {
namespace {

void print_rows(const AnySchedule& schedule, std::ostream& out) {
  print_csv(schedule_of(schedule).rows, out);
}

constexpr Format kFormats[] = {
    {"csv", ".csv", "PyTorch's CSV: one row per rank, no header",
     [](const Source& source, Diagnostics* diagnostics) { return parse_csv(source, diagnostics); },
     print_rows},
    {"plan", ".plan", "pipewright's text format: a header, then one row per rank", parse_plan,
     print_plan},
    {"json", ".json", "versioned JSON", parse_json, print_json},
};

// Reports text that no format allows. Returns whether the text is worth parsing.
bool check_text(const Source& source, Diagnostics* diagnostics) {
  const std::string& text = source.text;
  if (const size_t nul = text.find('\0'); nul != std::string::npos) {
    const bool utf16 = text.starts_with("\xFF\xFE") || text.starts_with("\xFE\xFF");
    PlaceCursor cursor(source);
    diagnostics
        ->error(Rule::kNotText,
                utf16 ? "the file is encoded in UTF-16" : "the file contains a NUL byte",
                cursor.at(nul, 1))
        .help = utf16 ? "save it as UTF-8" : "a schedule is a text file";
    return false;
  }
  if (text.find_first_not_of(" \t\r\n", source.mark_size()) == std::string::npos) {
    diagnostics->error(Rule::kEmptyFile, "the file contains no schedule");
    return false;
  }
  return true;
}

// Whether a text is recognisably not a CSV: no cell is an action, and it begins like HTML, contains
// control characters, or has cells most of which are sentences. A short or slightly wrong CSV is
// none of these, so that its cells get their own errors. Stops at the first action.
bool is_no_csv(std::string_view text) {
  constexpr size_t kFewCells = 4;
  const bool is_html = text.starts_with('<');
  bool is_binary = false;
  size_t cells = 0, sentences = 0;
  while (!text.empty()) {
    const size_t size = std::min(text.find_first_of(",\r\n"), text.size());
    const TextSpan span = trimmed(text, {0, size});
    const std::string_view cell = span.of(text);
    text.remove_prefix(std::min(size + 1, text.size()));
    if (cell.empty()) continue;
    Action action;
    if (!parse_action(cell, &action)) return false;
    ++cells;
    sentences += !is_digit(cell[0]) && cell[0] != '(' && cell.find(' ') != std::string_view::npos;
    is_binary |= std::ranges::any_of(cell, [](char letter) {
      return static_cast<unsigned char>(letter) < ' ' && letter != '\t';
    });
  }
  return is_html || is_binary || (cells >= kFewCells && 2 * sentences > cells);
}

// Reports a file in none of the formats, which would be read as a CSV with an error per cell.
bool check_is_schedule(const Source& source, Diagnostics* diagnostics) {
  std::string_view text = source.text;
  text.remove_prefix(source.mark_size());
  text.remove_prefix(std::min(text.find_first_not_of(" \t\r\n"), text.size()));
  if (!is_no_csv(text)) return true;
  diagnostics
      ->error(Rule::kNotSchedule,
              fmt::format("the file is not a schedule: expected a CSV, .plan or JSON, got {}",
                          text.starts_with('<') ? "HTML or XML" : "no cell with an action"))
      .help = "a CSV has one row per rank, with cells such as `0F0`";
  return false;
}

}  // namespace

std::span<const Format> formats() { return kFormats; }

const Format* find_format(std::string_view name) {
  const auto found = std::ranges::find(kFormats, name, &Format::name);
  return found == std::end(kFormats) ? nullptr : found;
}

const Format& detect_format(const Source& source) {
  for (const Format& row : kFormats) {
    if (source.name.ends_with(row.extension)) return row;
  }
  std::string_view text = source.text;
  text.remove_prefix(source.mark_size());
  text.remove_prefix(std::min(text.find_first_not_of(" \t\r\n"), text.size()));
  return *find_format(text.starts_with('{') ? "json" : looks_like_plan(text) ? "plan" : "csv");
}

std::optional<ParsedSchedule> read_schedule(const Source& source, const ExpectedShape& expected,
                                            Diagnostics* diagnostics) {
  if (!check_text(source, diagnostics)) return std::nullopt;
  const Format& format = detect_format(source);
  const bool is_csv = format.name == "csv";
  if (is_csv && !check_is_schedule(source, diagnostics)) return std::nullopt;
  std::optional<ParsedSchedule> parsed =
      is_csv ? parse_csv(source, diagnostics, expected) : format.parse(source, diagnostics);
  if (parsed && !check_expected_shape(schedule_of(parsed->schedule), expected, diagnostics))
    parsed.reset();
  diagnostics->sort();
  return parsed;
}

}  // namespace pipewright::ir
