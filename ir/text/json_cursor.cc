#include "pipewright/ir/text/json_cursor.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <iterator>
#include <string>

#include "pipewright/ir/printable.h"

namespace pipewright::ir {
namespace {

using Json = nlohmann::json;

// An input iterator that records how far the parser has come.
class CountingIterator {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  CountingIterator(const char* at, const char** position) : at_(at), position_(position) {}
  reference operator*() const { return *at_; }
  CountingIterator& operator++() {
    *position_ = ++at_;
    return *this;
  }
  friend bool operator==(const CountingIterator& left, const CountingIterator& right) {
    return left.at_ == right.at_;
  }

 private:
  const char* at_;
  const char** position_;
};

// Whether a letter can be part of a number, true, false or null.
bool is_word_part(char letter) {
  return std::isalnum(static_cast<unsigned char>(letter)) ||
         std::string_view("+-.").find(letter) != std::string_view::npos;
}

// nlohmann's message without its place, in our words:
//
//   [json.exception.parse_error.101] parse error at line 1, column 2: syntax error while parsing
//   value - unexpected ']'; expected '[', '{', or a literal
//   -> expected `[`, `{`, or a literal, got `]`
//
//   [json.exception.parse_error.101] parse error at line 1, column 4: syntax error while parsing
//   value - invalid literal; last read: 'tru}'
//   -> syntax error: invalid literal
//
//   [json.exception.out_of_range.406] number overflow parsing '1e400'
//   -> expected a number that fits a double, got `1e400`
std::string syntax_message(std::string_view what) {
  constexpr std::string_view kUnexpected = "unexpected ", kExpected = "; expected ", kId = "] ",
                             kOverflow = "number overflow parsing '";
  if (const size_t id_end = what.find(kId);
      what.starts_with('[') && id_end != std::string_view::npos)
    what.remove_prefix(id_end + kId.size());
  if (what.starts_with(kOverflow) && what.ends_with('\''))
    return fmt::format("expected a number that fits a double, got `{}`",
                       what.substr(kOverflow.size(), what.size() - kOverflow.size() - 1));
  const size_t detail_at = what.find(" - ");
  if (detail_at == std::string_view::npos) return std::string(what);
  const std::string_view detail = what.substr(detail_at + 3);
  const size_t expected_at = detail.rfind(kExpected);
  if (!detail.starts_with(kUnexpected) || expected_at == std::string_view::npos)
    return fmt::format("syntax error: {}", detail.substr(0, detail.find("; last read: ")));
  std::string message =
      fmt::format("expected {}, got {}", detail.substr(expected_at + kExpected.size()),
                  detail.substr(kUnexpected.size(), expected_at - kUnexpected.size()));
  std::ranges::replace(message, '\'', '`');
  return message;
}

}  // namespace

JsonCursor::JsonCursor(const Source& source)
    : source_(source),
      text_(source.text),
      position_(text_.data() + source.mark_size()),
      places_(source) {}

bool JsonCursor::parse(nlohmann::json_sax<Json>* events) {
  const char* end = text_.data() + text_.size();
  return Json::sax_parse(CountingIterator(position_, &position_), CountingIterator(end, &position_),
                         events);
}

Place JsonCursor::string() {
  // Back to the opening quote: the nearest one that no backslash escapes.
  const size_t end = token_end();
  size_t begin = end - 1;
  while (begin > 0 && (text_[begin - 1] != '"' || (begin > 1 && text_[begin - 2] == '\\'))) --begin;
  if (begin > 0) --begin;
  return places_.at(begin, end - begin);
}

Place JsonCursor::word() {
  // The parser reads one byte past a number to see that it has ended.
  size_t end = token_end();
  if (end > 0 && !is_word_part(text_[end - 1])) --end;
  const size_t begin = word_begin(end);
  return places_.at(begin, end - begin);
}

void JsonCursor::report(size_t read, const Json::exception& error, Diagnostics* diagnostics) {
  // The last byte read is the wrong one, or ends a number or a word that is wrong as a whole.
  const size_t end = std::min(source_.mark_size() + read, text_.size() + 1);
  const size_t begin = std::min(word_begin(end), end - 1);
  diagnostics->error(Rule::kJsonSyntax, printable(syntax_message(error.what())),
                     places_.at(begin, std::min(end, text_.size()) - begin));
}

size_t JsonCursor::word_begin(size_t end) const {
  while (end > 0 && end <= text_.size() && is_word_part(text_[end - 1])) --end;
  return end;
}

}  // namespace pipewright::ir
