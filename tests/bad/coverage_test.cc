#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "pipewright/ir/diagnostic.h"

namespace pipewright::ir {
namespace {

TEST(BadFilesTest, EveryRuleHasAFileThatViolatesIt) {
  for (const RuleInfo& row : rules()) {
    const std::string path = "tests/bad/" + code(row.rule) + ".txt";
    std::ifstream file(path);
    ASSERT_TRUE(file) << path << " is missing";
    std::stringstream text;
    text << file.rdbuf();
    EXPECT_NE(text.str().find("error[" + code(row.rule) + "]"), std::string::npos) << path;
    // Errors in a request, not in a schedule, are usage errors.
    const bool is_request = code(row.rule).starts_with("PW07");
    EXPECT_NE(text.str().find(is_request ? "\n= 2\n" : "\n= 1\n"), std::string::npos) << path;
  }
}

}  // namespace
}  // namespace pipewright::ir
