#ifndef PIPEWRIGHT_IR_TEXT_SPELLING_H_
#define PIPEWRIGHT_IR_TEXT_SPELLING_H_

#include <span>
#include <string>
#include <string_view>

// "did you mean": for keys, commands, flags and schedule names alike.

namespace pipewright::ir {

// The one of `known` that is nearest to `word`, in any case, if it is near enough to be what was
// meant: at most a third of its letters changed, left out or added; swapped neighbours count once
// (Damerau-Levenshtein). Empty if none is. The first of equals wins.
std::string_view nearest(std::string_view word, std::span<const std::string_view> known);

// "did you mean `microbatches`?", or empty.
std::string did_you_mean(std::string_view word, std::span<const std::string_view> known);

}  // namespace pipewright::ir

#endif  // PIPEWRIGHT_IR_TEXT_SPELLING_H_
