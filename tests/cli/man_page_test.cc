#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "pipewright/cli/command_table.h"

namespace pipewright::cli {
namespace {

// In roff, a literal hyphen is written \-.
std::string roff(std::string_view text) {
  std::string escaped;
  for (const char letter : text)
    escaped += letter == '-' ? std::string("\\-") : std::string(1, letter);
  return escaped;
}

TEST(ManPageTest, NamesEveryCommandOptionAndExample) {
  std::ifstream file("cli/pipewright.1");
  std::stringstream stream;
  stream << file.rdbuf();
  const std::string page = stream.str();
  ASSERT_TRUE(page.starts_with(".TH PIPEWRIGHT 1"));
  for (const CommandSpec& command : commands()) {
    EXPECT_NE(page.find("\n.SS pipewright " + std::string(command.name)), std::string::npos)
        << command.name;
    for (const OptionSpec& option : command.options)
      EXPECT_NE(page.find(roff(option.name)), std::string::npos) << option.name;
    for (const Example& example : command.examples)
      EXPECT_NE(page.find(roff(example.command)), std::string::npos) << example.command;
  }
  for (const char* section :
       {"NAME", "SYNOPSIS", "COMMANDS", "OPTIONS", "EXIT STATUS", "ENVIRONMENT", "EXAMPLES"}) {
    EXPECT_NE(page.find("\n.SH " + std::string(section) + "\n"), std::string::npos) << section;
  }
}

}  // namespace
}  // namespace pipewright::cli
