// Reads a .plan line by line: the first line, header lines into a HeaderReader, row labels in
// ascending order, cells separated by blanks. Every line is parsed even after an error, so that all
// errors are reported. Linear in the size of the text.

#include "pipewright/ir/text/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <ostream>
#include <string>
#include <utility>

#include "pipewright/ir/text/action_text.h"
#include "pipewright/ir/text/header.h"
#include "pipewright/ir/text/scan_action.h"

namespace pipewright::ir {
namespace {

constexpr std::string_view kMagic = "pipewright plan ";
constexpr std::string_view kVersion = "1";
constexpr std::string_view kIdle = ".";

std::string_view trim(std::string_view text) {
  while (!text.empty() && is_blank(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_blank(text.back())) text.remove_suffix(1);
  return text;
}

class PlanParser {
 public:
  PlanParser(const Source& source, Diagnostics* diagnostics)
      : source_(source),
        text_(source.text),
        cursor_(source),
        diagnostics_(diagnostics),
        cells_(source, CellStyle::kBlanks) {}

  std::optional<ParsedSchedule> parse() {
    const size_t errors_before = diagnostics_->total();
    size_t begin = source_.mark_size();
    for (size_t line = 1; begin < text_.size(); ++line) {
      const size_t end = std::min(text_.find('\n', begin), text_.size());
      cursor_.start_line(line, begin);
      const std::string_view content = trim(text_.substr(begin, end - begin));
      if (line == 1) {
        if (!parse_first_line(content)) return std::nullopt;
      } else {
        parse_line(content, line, begin);
      }
      begin = end + 1;
    }
    return header_.finish(first_line_, errors_before, std::move(rows_), std::move(cells_),
                          diagnostics_);
  }

 private:
  size_t offset_of(std::string_view piece) const {
    return static_cast<size_t>(piece.data() - text_.data());
  }
  Place place_of(std::string_view piece) { return cursor_.at(offset_of(piece), piece.size()); }

  bool parse_first_line(std::string_view line) {
    first_line_ = place_of(line);
    if (!line.starts_with(kMagic)) {
      diagnostics_
          ->error(Rule::kNotAPlan,
                  fmt::format("expected `{}{}`, got {}", kMagic, kVersion, backticked(line)),
                  first_line_)
          .help = "the first line names the format and its version";
      return false;
    }
    const std::string_view version = trim(line.substr(kMagic.size()));
    if (version != kVersion) {
      diagnostics_->error(
          Rule::kVersion,
          fmt::format("unsupported version: expected {}, got {}", kVersion, backticked(version)),
          place_of(version));
      return false;
    }
    return true;
  }

  void parse_line(std::string_view line, size_t number, size_t line_offset) {
    if (line.empty() || line.front() == '#') return;
    const size_t colon = line.find(':');
    const std::string_view key = trim(line.substr(0, colon));
    const bool is_row = key == "rank" || key.starts_with("rank ");
    if (colon == std::string_view::npos) {
      diagnostics_->error(
          Rule::kPlanLine,
          fmt::format("expected `key: value` or `rank N: actions`, got {}", backticked(line)),
          place_of(line));
    } else if (is_row) {
      parse_row(key, line.substr(colon + 1), number, line_offset);
    } else if (!rows_.empty()) {
      diagnostics_
          ->error(Rule::kPlanLine, fmt::format("key {} is after the rows", backticked(key)),
                  place_of(key))
          .help = "move it before the first row";
    } else {
      const std::string_view value = trim(line.substr(colon + 1));
      const Place key_place = place_of(key);
      header_.set(key, value, key_place, place_of(value), diagnostics_);
    }
  }

  void parse_row(std::string_view label, std::string_view cells, size_t number,
                 size_t line_offset) {
    const std::string expected = fmt::format("rank {}", rows_.size());
    if (label != expected) {
      diagnostics_
          ->error(Rule::kRowLabel,
                  fmt::format("expected `{}:`, got {}", expected, backticked(label)),
                  place_of(label))
          .help = "list each rank once, in ascending order from 0";
    }
    cells_.add_row({number, line_offset, offset_of(cells)});
    Row& row = rows_.emplace_back();
    row.reserve(count_words(cells));
    for (std::string_view rest = trim(cells); !rest.empty(); rest = trim(rest)) {
      size_t size = 0;
      while (size < rest.size() && !is_blank(rest[size])) ++size;
      const std::string_view cell = rest.substr(0, size);
      Action& action = row.emplace_back();
      if (cell != kIdle) {
        if (auto error = parse_action(cell, &action)) {
          const Place place = cursor_.at(offset_of(cell) + error->offset, error->length);
          report(std::move(*error), place, diagnostics_);
        }
      }
      rest.remove_prefix(size);
    }
  }

  static size_t count_words(std::string_view text) {
    size_t words = 0;
    bool in_word = false;
    for (const char letter : text) {
      const bool blank = is_blank(letter);
      words += !blank && !in_word;
      in_word = !blank;
    }
    return words;
  }

  const Source& source_;
  std::string_view text_;
  PlaceCursor cursor_;
  Diagnostics* diagnostics_;
  Place first_line_;
  HeaderReader header_;
  Rows rows_;
  CellIndex cells_;
};

}  // namespace

std::optional<ParsedSchedule> parse_plan(const Source& source, Diagnostics* diagnostics) {
  return PlanParser(source, diagnostics).parse();
}

void print_plan(const AnySchedule& any, std::ostream& out) {
  const Schedule& schedule = schedule_of(any);
  std::string text = fmt::format("{}{}\n", kMagic, kVersion);
  for (const HeaderKey& key : header_keys()) {
    if (const auto value = key.get(schedule, level_of(any)))
      text += fmt::format("{}: {}\n", key.name, *value);
  }
  for (const LoweringPolicy& policy : lowering_policies()) {
    if (const auto value = policy.get(schedule.lowering))
      text += fmt::format("{}: {}\n", policy.name, *value);
  }
  text += '\n';
  constexpr size_t kChunk = 1 << 16;
  for (size_t rank = 0; rank < schedule.rows.size(); ++rank) {
    text += fmt::format("rank {}:", rank);
    for (const Action& action : schedule.rows[rank]) {
      text += ' ';
      if (action.is_idle()) text += kIdle;
      append_action(action, &text);
      if (text.size() >= kChunk) {
        out << text;
        text.clear();
      }
    }
    text += '\n';
  }
  out << text;
}

bool looks_like_plan(std::string_view text) { return text.starts_with("pipewright"); }

}  // namespace pipewright::ir
