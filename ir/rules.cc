#include "pipewright/ir/rules.h"

#include <algorithm>
#include <cctype>
#include <cstddef>

#include "pipewright/ir/check.h"

namespace pipewright::ir {
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

}  // namespace pipewright::ir
