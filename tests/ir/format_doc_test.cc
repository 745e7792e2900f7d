// The examples in FORMAT.md are valid, and its .plan and JSON examples are the same schedule.
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>
#include <vector>

#include "pipewright/ir/text/read.h"
#include "pipewright/ir/text/render.h"

namespace pipewright::ir {
namespace {

// The fenced blocks of a Markdown file.
std::vector<std::string> blocks(const std::string& path) {
  std::ifstream file(path);
  std::vector<std::string> found;
  bool inside = false;
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("```")) {
      inside = !inside;
      if (inside) found.emplace_back();
    } else if (inside) {
      found.back() += line + "\n";
    }
  }
  return found;
}

TEST(FormatDocTest, ExamplesAreValid) {
  std::vector<AnySchedule> schedules;
  for (const std::string& block : blocks("ir/text/FORMAT.md")) {
    if (block.find(" = ") != std::string::npos) continue;  // a grammar
    const Source source{"<example>", block};
    Diagnostics diagnostics;
    const auto parsed = read_schedule(source, {}, &diagnostics);
    ASSERT_TRUE(parsed) << render(diagnostics, &source, {});
    schedules.push_back(parsed->schedule);
  }
  // A CSV, a .plan with slices, one with replicas, one without, JSON, JSON with a recording.
  ASSERT_EQ(schedules.size(), 6u);
  EXPECT_EQ(schedule_of(schedules[3]), schedule_of(schedules[4]));
  EXPECT_EQ(schedule_of(schedules[1]).slices, 2);
  EXPECT_EQ(schedule_of(schedules[2]).placement.num_replicas(), 2);
}

}  // namespace
}  // namespace pipewright::ir
