#include "pipewright/ir/text/json_scanner.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cstddef>
#include <iterator>
#include <nlohmann/json.hpp>

#include "pipewright/ir/diagnostic.h"

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
  const JsonToken token = json_token_at(text_, token_end());
  return places_.at(token.begin, token.end - token.begin);
}

Place JsonCursor::word() {
  // The parser reads one byte past a number to see that it has ended.
  size_t end = token_end();
  if (end > 0 && end <= text_.size() && !is_json_word_letter(text_[end - 1])) --end;
  const JsonToken token = json_token_at(text_, end);
  return places_.at(token.begin, token.end - token.begin);
}

void JsonCursor::report(size_t read, const Json::exception& error, Diagnostics* diagnostics) {
  const size_t end = std::min(source_.mark_size() + read, text_.size() + 1);
  const JsonSyntaxError syntax = json_syntax_error(text_, end, error.what());
  diagnostics->error(Rule::kJsonSyntax, syntax.message, places_.at(syntax.offset, syntax.length));
}

namespace {

using Json = nlohmann::json;

// Forwards the callbacks of nlohmann's parser, except those inside a skipped value.
class Forwarder : public nlohmann::json_sax<Json> {
 public:
  Forwarder(JsonCursor* cursor, JsonEvents* events, Diagnostics* diagnostics)
      : cursor_(*cursor), events_(*events), diagnostics_(diagnostics) {}

  bool null() override { return scalar(JsonKind::kNull, "null"); }
  bool boolean(bool value) override { return scalar(JsonKind::kBoolean, value ? "true" : "false"); }
  bool number_integer(number_integer_t value) override {
    return scalar(JsonKind::kNumber, std::to_string(value));
  }
  bool number_unsigned(number_unsigned_t value) override {
    return scalar(JsonKind::kNumber, std::to_string(value));
  }
  bool number_float(number_float_t, const string_t& text) override {
    return scalar(JsonKind::kNumber, text);
  }
  bool string(string_t& value) override { return scalar(JsonKind::kString, value); }
  bool binary(binary_t&) override { return false; }  // does not occur in JSON text
  bool start_object(std::size_t) override { return enter(JsonKind::kObject); }
  bool start_array(std::size_t) override { return enter(JsonKind::kArray); }
  bool end_object() override { return leave(JsonKind::kObject); }
  bool end_array() override { return leave(JsonKind::kArray); }
  bool key(string_t& value) override { return skipped_ > 0 || events_.key(value); }
  bool parse_error(std::size_t read, const std::string&, const Json::exception& error) override {
    cursor_.report(read, error, diagnostics_);
    return false;
  }

 private:
  bool scalar(JsonKind kind, const std::string& text) {
    return skipped_ > 0 || events_.scalar(kind, text);
  }
  bool enter(JsonKind kind) {
    if (skipped_ > 0 || !events_.enter(kind)) ++skipped_;
    return true;
  }
  bool leave(JsonKind kind) {
    if (skipped_ > 0) {
      --skipped_;
    } else {
      events_.leave(kind);
    }
    return true;
  }

  JsonCursor& cursor_;
  JsonEvents& events_;
  Diagnostics* diagnostics_;
  int skipped_ = 0;  // depth inside a skipped value
};

}  // namespace

std::string_view name(JsonKind kind) {
  constexpr std::string_view kNames[] = {"null",     "true or false", "a number",
                                         "a string", "an array",      "an object"};
  return kNames[static_cast<size_t>(kind)];
}

bool scan_json(JsonCursor* cursor, JsonEvents* events, Diagnostics* diagnostics) {
  Forwarder forwarder(cursor, events, diagnostics);
  return cursor->parse(&forwarder);
}

// The parser's message names what it was parsing ("while parsing object key") and, inside strings
// and numbers, what was wrong. The rest follows from the text: the parser stops at the first byte
// that does not fit, so the wrong token is around it.

namespace {

std::string name_of(std::string_view text, const JsonToken& token) {
  if (token.begin == text.size()) return "the end of the file";
  if (text[token.begin] == '\n' || text[token.begin] == '\r') return "a line break";
  return backticked(text.substr(token.begin, token.end - token.begin));
}

// What the parser reports, as part of its message, and what it expected. Errors inside a string or
// a number are about one byte; all others are about a token.
struct Case {
  std::string_view reported;
  std::string_view expected;
  bool is_byte = true;
};
constexpr Case kCases[] = {
    {"missing closing quote", "`\"` at the end of the string"},
    {"must be escaped", "an escape such as `\\n` in the string"},
    {"after backslash", "one of `\"\\/bfnrtu` after the backslash"},
    {"4 hex digits", "4 hexadecimal digits after `\\u`"},
    {"must be followed by U+DC00", "two `\\u` escapes for this character (a surrogate pair)"},
    {"must follow U+D800", "two `\\u` escapes for this character (a surrogate pair)"},
    {"ill-formed UTF-8", "UTF-8"},
    {"digit after '.'", "a digit after `.`"},
    {"digit after '-'", "a digit after `-`"},
    {"digit after exponent sign", "a digit in the exponent"},
    {"digit after exponent", "a digit in the exponent"},
    {"while parsing object key", "a key in double quotes", false},
    {"while parsing object separator", "`:`", false},
    {"while parsing object", "`,` or `}`", false},
    {"while parsing array", "`,` or `]`", false},
    {"while parsing value", "a value", false},
};

// Whether a literal breaks off before the last byte read: at the `}` of `tru}`.
bool is_cut_literal(std::string_view text, size_t end, std::string_view what) {
  if (what.find("invalid literal") == std::string_view::npos || end < 2) return false;
  if (end <= text.size() && is_json_word_letter(text[end - 1])) return false;
  const JsonToken token = json_token_at(text, end - 1);
  const std::string_view word = text.substr(token.begin, token.end - token.begin);
  return !word.empty() && std::string_view("tfn").find(word[0]) != std::string_view::npos &&
         word != "true" && word != "false" && word != "null";
}

}  // namespace

bool is_json_word_letter(char letter) {
  return std::isalnum(static_cast<unsigned char>(letter)) ||
         std::string_view("+-._").find(letter) != std::string_view::npos;
}

JsonToken json_token_at(std::string_view text, size_t end) {
  if (end == 0 || end > text.size()) return {text.size(), text.size()};
  size_t begin = end - 1;
  if (text[begin] == '"') {
    // Back to the opening quote: the nearest one that no backslash escapes.
    while (begin > 0 && (text[begin - 1] != '"' || (begin > 1 && text[begin - 2] == '\\'))) --begin;
    return {begin == 0 ? end - 1 : begin - 1, end};
  }
  if (!is_json_word_letter(text[begin])) return {begin, end};
  while (begin > 0 && is_json_word_letter(text[begin - 1])) --begin;
  while (end < text.size() && is_json_word_letter(text[end])) ++end;
  return {begin, end};
}

JsonSyntaxError json_syntax_error(std::string_view text, size_t end, std::string_view what) {
  const JsonToken token = json_token_at(text, is_cut_literal(text, end, what) ? end - 1 : end);
  const auto error = [&](std::string_view expected, const JsonToken& at) {
    return JsonSyntaxError{fmt::format("expected {}, got {}", expected, name_of(text, at)),
                           at.begin, at.end - at.begin};
  };
  if (what.find("number overflow") != std::string_view::npos)
    return error("a number that fits a double", token);
  const std::string_view word = text.substr(token.begin, token.end - token.begin);
  if (word.size() > 1 && word[0] == '0' && std::isdigit(static_cast<unsigned char>(word[1])))
    return error("a number without leading zeros", token);
  if (what.ends_with("; expected end of input")) return error("the end of the file", token);
  what = what.substr(0, what.find("; last read: "));  // without words of the text
  for (const Case& one : kCases) {
    if (what.find(one.reported) == std::string_view::npos) continue;
    const JsonToken byte{std::min(end - 1, text.size()), std::min(end, text.size())};
    return error(one.expected, one.is_byte ? byte : token);
  }
  return error("JSON", token);
}

}  // namespace pipewright::ir
