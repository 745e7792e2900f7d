#include <fmt/format.h>

#include <ostream>
#include <string>
#include <vector>

#include "cli/command_table.h"
#include "cli/commands.h"
#include "ir/diagnostic.h"
#include "ir/rules.h"

namespace pipewright::cli {

int run_explain(const Invocation& invocation, Console& console) {
  const std::string& word = invocation.arguments[0];
  if (const std::optional<ir::Rule> rule = ir::rule_of_code(word)) {
    console.out << fmt::format("{}: {}\n\n{}", ir::code(*rule), ir::info(*rule).summary,
                               ir::info(*rule).text);
    return kExitOk;
  }
  std::vector<std::string> codes;
  for (const ir::RuleInfo& row : ir::rules()) codes.push_back(ir::code(row.rule));
  print_trouble(fmt::format("there is no rule {}; rules are {}", ir::backticked(word),
                            fmt::join(codes, ", ")),
                console);
  return kExitTrouble;
}

}  // namespace pipewright::cli
