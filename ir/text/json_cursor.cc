#include "pipewright/ir/text/json_cursor.h"

#include <algorithm>
#include <cctype>
#include <iterator>
#include <string>

#include "pipewright/ir/printable.h"

namespace pipewright::ir {
namespace {

using Json = nlohmann::json;

// Hands the text to the parser byte by byte and keeps count of how far it has come.
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
  const size_t end = token_end();
  size_t begin = end - 1;
  while (begin > 0 && (text_[begin - 1] != '"' || (begin > 1 && text_[begin - 2] == '\\'))) --begin;
  if (begin > 0) --begin;
  return places_.at(begin, end - begin);
}

Place JsonCursor::word() {
  const auto is_part = [](char letter) {
    return std::isalnum(static_cast<unsigned char>(letter)) ||
           std::string_view("+-.").find(letter) != std::string_view::npos;
  };
  // To know where a number ends, the parser has read one byte more.
  size_t end = token_end();
  if (end > 0 && !is_part(text_[end - 1])) --end;
  size_t begin = end;
  while (begin > 0 && is_part(text_[begin - 1])) --begin;
  return places_.at(begin, end - begin);
}

void JsonCursor::report(const Json::exception& error, Diagnostics* diagnostics) {
  // "[json.exception.parse_error.101] parse error at line 1, column 2: syntax error while ...": the
  // place is ours to say.
  std::string message = error.what();
  if (message.starts_with('['))
    message.erase(0, std::min(message.find("] "), message.size() - 2) + 2);
  const size_t place_end = message.find(": ");
  if (place_end != std::string::npos) message.erase(0, place_end + 2);
  const size_t read = token_end();
  const size_t at = read > source_.mark_size() && read < text_.size() ? read - 1 : read;
  diagnostics->error(Rule::kJsonSyntax, printable(message),
                     places_.at(at, at < text_.size() ? 1 : 0));
}

}  // namespace pipewright::ir
