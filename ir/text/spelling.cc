#include "pipewright/ir/text/spelling.h"

#include <algorithm>
#include <cctype>
#include <vector>

namespace pipewright::ir {
namespace {

bool same_letter(char left, char right) {
  return std::tolower(static_cast<unsigned char>(left)) ==
         std::tolower(static_cast<unsigned char>(right));
}

// Levenshtein distance in which swapping two neighbours counts as one change (optimal string
// alignment).
size_t distance(std::string_view from, std::string_view to) {
  std::vector<std::vector<size_t>> cost(from.size() + 1, std::vector<size_t>(to.size() + 1));
  for (size_t row = 0; row <= from.size(); ++row) cost[row][0] = row;
  for (size_t column = 0; column <= to.size(); ++column) cost[0][column] = column;
  for (size_t row = 1; row <= from.size(); ++row) {
    for (size_t column = 1; column <= to.size(); ++column) {
      const size_t change = same_letter(from[row - 1], to[column - 1]) ? 0 : 1;
      cost[row][column] = std::min({cost[row - 1][column] + 1, cost[row][column - 1] + 1,
                                    cost[row - 1][column - 1] + change});
      if (row > 1 && column > 1 && same_letter(from[row - 1], to[column - 2]) &&
          same_letter(from[row - 2], to[column - 1])) {
        cost[row][column] = std::min(cost[row][column], cost[row - 2][column - 2] + 1);
      }
    }
  }
  return cost[from.size()][to.size()];
}

}  // namespace

std::string_view nearest(std::string_view word, std::span<const std::string_view> known) {
  std::string_view best;
  size_t best_distance = 0;
  if (word.size() > 64) return best;  // the table is quadratic, and no name is that long
  const auto is_letter = [](unsigned char letter) { return std::isalpha(letter) != 0; };
  if (std::ranges::none_of(word, is_letter)) return best;  // another number is not meant
  for (const std::string_view candidate : known) {
    const size_t changes = distance(word, candidate);
    if (changes * 3 > std::max(word.size(), candidate.size())) continue;
    if (best.empty() || changes < best_distance) {
      best = candidate;
      best_distance = changes;
    }
  }
  return best;
}

std::string did_you_mean(std::string_view word, std::span<const std::string_view> known) {
  const std::string_view best = nearest(word, known);
  return best.empty() ? "" : "did you mean `" + std::string(best) + "`?";
}

}  // namespace pipewright::ir
