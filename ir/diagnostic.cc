#include "pipewright/ir/diagnostic.h"

#include <algorithm>
#include <cctype>
#include <cstddef>
#include <tuple>
#include <utility>

#include "pipewright/ir/check.h"
#include "pipewright/ir/printable.h"

namespace pipewright::ir {
namespace {

// In UTF-8, a character is a leading byte and up to three continuation bytes 10xxxxxx.
bool starts_character(char byte) { return (static_cast<unsigned char>(byte) & 0xC0) != 0x80; }

}  // namespace

PlaceCursor::PlaceCursor(const Source& source) : text_(source.text) {
  start_line(1, source.mark_size());
}

void PlaceCursor::start_line(size_t line, size_t offset) {
  line_ = base_line_ = line;
  offset_ = base_offset_ = offset;
  column_ = 1;
}

Place PlaceCursor::at(size_t offset, size_t length) {
  offset = std::min(offset, text_.size());
  if (offset < offset_) start_line(base_line_, base_offset_);
  for (; offset_ < offset; ++offset_) {
    if (text_[offset_] == '\n') {
      ++line_;
      column_ = 1;
    } else if (starts_character(text_[offset_])) {
      ++column_;
    }
  }
  Place place;
  place.offset = offset;
  place.line = line_;
  place.column = column_;
  place.length =
      static_cast<size_t>(std::ranges::count_if(text_.substr(offset, length), starts_character));
  return place;
}

namespace {

constexpr RuleInfo kRules[] = {
// Each text starts with a line break, which keeps the table readable and is dropped here.
#define PW_RULE(number, enumerator, summary, text) \
  {Rule::enumerator, summary, std::string_view(text).substr(1)},
#include "pipewright/ir/rules.def"
#undef PW_RULE
};

static_assert(std::ranges::is_sorted(kRules, {}, [](const RuleInfo& row) { return row.rule; }));

}  // namespace

std::span<const RuleInfo> rules() { return kRules; }

const RuleInfo& info(Rule rule) {
  const auto* row = std::ranges::lower_bound(kRules, rule, {}, &RuleInfo::rule);
  PW_CHECK(row != std::end(kRules) && row->rule == rule, "rule without a row in ir/rules.def");
  return *row;
}

std::string code(Rule rule) {
  const std::string digits = std::to_string(static_cast<int>(rule));
  return "PW" + std::string(3 - digits.size(), '0') + digits;
}

std::optional<Rule> rule_of_code(std::string_view text) {
  constexpr size_t kDigits = 3;
  const auto is_letter = [&](size_t at, char upper) {
    return at < text.size() && std::toupper(static_cast<unsigned char>(text[at])) == upper;
  };
  if (is_letter(0, 'P') && is_letter(1, 'W')) text.remove_prefix(2);
  if (text.empty() || text.size() > kDigits) return std::nullopt;
  const std::string digits = std::string(kDigits - text.size(), '0').append(text);
  for (const RuleInfo& row : kRules) {
    if (code(row.rule).ends_with(digits)) return row.rule;
  }
  return std::nullopt;
}

Diagnostic& Diagnostics::error(Rule rule, std::string message, Place place) {
  ++total_;
  Diagnostic& added = kept_.size() < kMaxKept ? kept_.emplace_back() : overflow_ = {};
  added.rule = rule;
  added.message = std::move(message);
  added.place = place;
  return added;
}

void Diagnostics::append(Diagnostics&& other) {
  for (Diagnostic& one : other.kept_) {
    if (kept_.size() < kMaxKept) kept_.push_back(std::move(one));
  }
  total_ += other.total_;
}

void Diagnostics::find_places(const std::function<Place(int rank, int step)>& place_of) {
  std::vector<Place*> open;
  const auto add = [&](Place* place) {
    if (place->rank && place->step && !place->offset) open.push_back(place);
  };
  for (Diagnostic& diagnostic : kept_) {
    add(&diagnostic.place);
    for (Note& note : diagnostic.notes) add(&note.place);
  }
  // A CellIndex scans each row once if it is asked in ascending order.
  std::ranges::sort(open, {}, [](const Place* place) {
    return std::pair(place->rank.value_or(0), place->step.value_or(0));
  });
  for (Place* place : open) *place = place_of(place->rank.value_or(0), place->step.value_or(0));
}

void Diagnostics::sort() {
  const auto key = [](const Diagnostic& diagnostic) {
    const Place& place = diagnostic.place;
    return std::tuple(place.line, place.column, place.rank.value_or(-1), place.step.value_or(-1));
  };
  std::ranges::stable_sort(kept_, {}, key);
}

std::string backticked(std::string_view text) {
  constexpr size_t kLongest = 40;
  std::string shown = "`";
  size_t characters = 0;
  while (!text.empty()) {
    if (++characters > kLongest) {
      shown += "...";
      break;
    }
    shown += take_printable(&text);
  }
  return shown + "`";
}

}  // namespace pipewright::ir
