#ifndef PIPEWRIGHT_IR_RULES_H_
#define PIPEWRIGHT_IR_RULES_H_

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

// The rules that a schedule or its file can violate, each with a code such as PW006. The list is
// ir/rules.def. Constant data; safe to use from any thread.

namespace pipewright::ir {

enum class Rule : uint8_t {
#define PW_RULE(number, enumerator, summary, text) enumerator = number,
#include "pipewright/ir/rules.def"
#undef PW_RULE
};

struct RuleInfo {
  Rule rule;
  std::string_view summary;  // one line: the rule itself, which every valid schedule obeys
  std::string_view text;     // paragraphs, with a wrong and a fixed example
};

// All rules by number.
std::span<const RuleInfo> rules();
// The table row of a rule.
const RuleInfo& info(Rule rule);

// "PW006".
std::string code(Rule rule);
// The rule with that code, such as "PW042". Upper or lower case, `PW` and leading zeros may be left
// out: "pw42", "42". Returns nullopt if there is none.
std::optional<Rule> rule_of_code(std::string_view code);

}  // namespace pipewright::ir

#endif  // PIPEWRIGHT_IR_RULES_H_
