#ifndef PIPEWRIGHT_IR_TEXT_JSON_SYNTAX_H_
#define PIPEWRIGHT_IR_TEXT_JSON_SYNTAX_H_

#include <cstddef>
#include <string>
#include <string_view>

namespace pipewright::ir {

// Why a text is not JSON, and the bytes that are wrong.
//
//   {"version": 1,}     expected a key in double quotes, got `}`
//   {"version": 01}     expected a number without leading zeros, got `01`
struct JsonSyntaxError {
  std::string message;
  size_t offset, length;
};

// Whether a letter can be part of a number, true, false or null, or of a misspelt one.
bool is_json_word_letter(char letter);

// The token that the byte before `end` belongs to, as [begin, end): a string, a number, a word, or
// one byte. Empty at the end of the text.
struct JsonToken {
  size_t begin, end;
};
JsonToken json_token_at(std::string_view text, size_t end);

// Puts an error of nlohmann's parser into the words of our diagnostics. `what` is its message, and
// `text[end - 1]` the last byte that it read; `end` is one more than the size if it read past the
// end. A pure function.
JsonSyntaxError json_syntax_error(std::string_view text, size_t end, std::string_view what);

}  // namespace pipewright::ir

#endif  // PIPEWRIGHT_IR_TEXT_JSON_SYNTAX_H_
