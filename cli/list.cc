#include <algorithm>
#include <ostream>
#include <string>
#include <vector>

#include "cli/command_table.h"
#include "cli/commands.h"
#include "ir/check.h"
#include "ir/read.h"
#include "schedules/catalogue.h"

namespace pipewright::cli {

int run_list(const Invocation&, Console& console) {
  std::vector<std::vector<std::string>> lines = {
      {"NAME", "LEVEL", "RANKS", "STAGES", "MICROBATCHES", "PLACEMENT", "FILE"}};
  for (const schedules::ReadyFile& file : schedules::ready_files()) {
    ir::Diagnostics diagnostics;
    const ir::Source source{std::string(file.path), std::string(file.text)};
    const auto parsed = ir::read_schedule(source, {}, &diagnostics);
    PW_CHECK(parsed, "a ready file is valid: " + source.name);
    const ir::Schedule& schedule = ir::schedule_of(parsed->schedule);
    lines.push_back({schedule.name, std::string(ir::name(ir::level_of(parsed->schedule))),
                     std::to_string(schedule.placement.num_ranks()),
                     std::to_string(schedule.placement.num_stages()),
                     std::to_string(schedule.num_microbatches), schedule.placement.to_string(),
                     source.name});
  }
  std::vector<size_t> widths(lines[0].size());
  for (const auto& line : lines) {
    for (size_t column = 0; column < line.size(); ++column)
      widths[column] = std::max(widths[column], line[column].size());
  }
  for (auto& line : lines) {
    for (size_t column = 0; column + 1 < line.size(); ++column)
      line[column].resize(widths[column] + 2, ' ');
    for (const std::string& cell : line) console.out << cell;
    console.out << '\n';
  }
  return kExitOk;
}

}  // namespace pipewright::cli
