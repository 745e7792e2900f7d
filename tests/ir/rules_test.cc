#include <gtest/gtest.h>

#include "pipewright/ir/diagnostic.h"

namespace pipewright::ir {
namespace {

TEST(RulesTest, EveryRuleIsFoundByItsCodeInAnyCase) {
  for (const RuleInfo& row : rules()) {
    EXPECT_EQ(rule_of_code(code(row.rule)), row.rule);
    EXPECT_EQ(&info(row.rule), &row);
  }
  for (const char* short_form : {"pw006", "PW6", "Pw06", "6", "06", "006"})
    EXPECT_EQ(rule_of_code(short_form), Rule::kTrailingText) << short_form;
  for (const char* bad : {"", "PW", "P6", "PW0006", "0006", "PW999", "0", "PW-6", "W06", "PWPW6"})
    EXPECT_FALSE(rule_of_code(bad)) << bad;
}

TEST(RulesTest, TextsFitATerminal) {
  for (const RuleInfo& row : rules()) {
    EXPECT_FALSE(row.summary.empty() || row.summary.ends_with('.')) << code(row.rule);
    EXPECT_TRUE(row.text.ends_with('\n') && !row.text.starts_with('\n')) << code(row.rule);
    for (std::string_view rest = row.text; !rest.empty(); rest.remove_prefix(rest.find('\n') + 1)) {
      EXPECT_LE(rest.find('\n'), 80u) << code(row.rule);
    }
  }
}

}  // namespace
}  // namespace pipewright::ir
