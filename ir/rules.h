#ifndef PIPEWRIGHT_IR_RULES_H_
#define PIPEWRIGHT_IR_RULES_H_

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

// The rules that a schedule, or the file that holds it, can break. The list is ir/rules.def.
// Constant data; any thread.

namespace pipewright::ir {

enum class Rule : uint8_t {
#define PW_RULE(number, enumerator, summary, text) enumerator = number,
#include "pipewright/ir/rules.def"
#undef PW_RULE
};

struct RuleInfo {
  Rule rule;
  std::string_view summary;  // one line, what holds where the rule is kept
  std::string_view text;     // paragraphs with a bad and a mended example
};

// All rules by number.
std::span<const RuleInfo> rules();
const RuleInfo& info(Rule rule);

// "PW006".
std::string code(Rule rule);
// The rule of a code, in any case; none if there is none.
std::optional<Rule> rule_of_code(std::string_view code);

}  // namespace pipewright::ir

#endif  // PIPEWRIGHT_IR_RULES_H_
