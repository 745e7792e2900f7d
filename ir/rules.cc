#include "pipewright/ir/rules.h"

#include <algorithm>
#include <cctype>

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
  std::string upper(text);
  std::ranges::transform(upper, upper.begin(),
                         [](unsigned char letter) { return std::toupper(letter); });
  for (const RuleInfo& row : kRules) {
    if (upper == code(row.rule)) return row.rule;
  }
  return std::nullopt;
}

}  // namespace pipewright::ir
