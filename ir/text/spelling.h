#ifndef PIPEWRIGHT_IR_TEXT_SPELLING_H_
#define PIPEWRIGHT_IR_TEXT_SPELLING_H_

#include <span>
#include <string>
#include <string_view>

// Suggestions for misspelled words ("did you mean"): keys, commands, flags, schedule names. Pure
// functions; any thread.

namespace pipewright::ir {

// The known word nearest to `word`, ignoring case, if at most a third of its letters (of the longer
// word) are changed, missing or added. Two swapped neighbours count as one change
// (Damerau-Levenshtein distance, optimal string alignment). Empty if no word is near enough; the
// first wins among equals. Quadratic in the length of the words, so words over 64 letters match
// nothing, and a word without letters matches none: another number is not meant.
std::string_view nearest(std::string_view word, std::span<const std::string_view> known);

// "did you mean `microbatches`?", or empty.
std::string did_you_mean(std::string_view word, std::span<const std::string_view> known);

}  // namespace pipewright::ir

#endif  // PIPEWRIGHT_IR_TEXT_SPELLING_H_
