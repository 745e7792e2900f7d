#include "pipewright/ir/text/json_cursor.h"

#include <algorithm>
#include <iterator>

#include "pipewright/ir/text/json_syntax.h"

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

}  // namespace pipewright::ir
