// Every generated order equals its authors' cell for cell, idle slots included: compared with the
// files in tests/orders, which PyTorch, DualPipe and Seq1F1B wrote.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <regex>
#include <sstream>

#include "pipewright/ir/text/action_text.h"
#include "pipewright/ir/text/csv.h"
#include "pipewright/schedules/registry.h"

namespace pipewright::schedules {
namespace {

ir::Rows without_trailing_idle(ir::Rows rows) {
  for (ir::Row& row : rows) {
    while (!row.empty() && row.back().is_idle()) row.pop_back();
  }
  return rows;
}

std::string as_text(const ir::Rows& rows) {
  std::ostringstream out;
  ir::print_csv(rows, out);
  return out.str();
}

TEST(OrdersTest, EqualTheirAuthorsCellForCell) {
  int files = 0;
  const std::regex name(R"(([\w-]+)_pp(\d+)_mb(\d+)_spr(\d+)(?:_slices(\d+))?\.csv)");
  for (const auto& entry : std::filesystem::directory_iterator("tests/orders")) {
    const std::string file_name = entry.path().filename().string();
    std::smatch part;
    if (!std::regex_match(file_name, part, name)) continue;
    SCOPED_TRACE(file_name);
    const ScheduleSpec* spec = find_schedule(part[1].str());
    ASSERT_NE(spec, nullptr);
    const int ranks = std::stoi(part[2]);
    Shape shape{ranks, ranks * std::stoi(part[4]), std::stoi(part[3])};
    if (part[5].matched) shape.slices = std::stoi(part[5]);
    ASSERT_FALSE(shape_error(*spec, shape));
    std::ifstream file(entry.path(), std::ios::binary);
    std::stringstream text;
    text << file.rdbuf();
    const ir::Source source{file_name, text.str()};
    ir::Diagnostics diagnostics;
    const int replicas = spec->pattern == Pattern::kBothWays ? 2 : 1;
    const auto theirs = ir::parse_csv(source, &diagnostics,
                                      {.slices = std::max(1, shape.slices), .replicas = replicas});
    ASSERT_TRUE(theirs);
    const ir::Schedule& expected = ir::schedule_of(theirs->schedule);
    const ir::ComputeOrder ours = make_order(*spec, shape);
    EXPECT_EQ(as_text(ours.rows), as_text(without_trailing_idle(expected.rows)));
    EXPECT_EQ(ours.placement, expected.placement);
    EXPECT_EQ(ours.num_microbatches, expected.num_microbatches);
    ++files;
  }
  EXPECT_EQ(files, 38);
}

}  // namespace
}  // namespace pipewright::schedules
