// schedules/*.plan: one small ready-made file per schedule, equal to the output of the generator
// for its shape.
#include <gtest/gtest.h>

#include <set>
#include <sstream>

#include "pipewright/ir/text/plan.h"
#include "pipewright/schedules/catalogue.h"
#include "pipewright/schedules/registry.h"

namespace pipewright::schedules {
namespace {

TEST(ReadyFilesTest, EachEqualsTheGeneratedSchedule) {
  std::set<std::string> names;
  for (const ReadyFile& file : ready_files()) {
    SCOPED_TRACE(file.name);
    const ir::Source source{std::string(file.name), std::string(file.text)};
    ir::Diagnostics diagnostics;
    const auto parsed = ir::parse_plan(source, &diagnostics);
    ASSERT_TRUE(parsed);
    const ir::Schedule& ready = ir::schedule_of(parsed->schedule);
    const ScheduleSpec* spec = find_schedule(ready.name);
    ASSERT_NE(spec, nullptr);
    const Shape shape{.ranks = ready.placement.num_ranks(),
                      .stages = ready.placement.num_stages(),
                      .microbatches = ready.num_microbatches / ready.slices,
                      .slices = ready.slices};
    std::ostringstream text;
    ir::print_plan(make_order(*spec, shape), text);
    EXPECT_EQ(text.str(), file.text);
    names.insert(ready.name);
    EXPECT_EQ(find_ready_file(file.name), &file);
    EXPECT_EQ(find_ready_file(ready.name), &file);
  }
  for (const ScheduleSpec* spec : all_schedules())
    EXPECT_TRUE(names.contains(std::string(spec->name))) << spec->name;
  EXPECT_EQ(find_ready_file(""), nullptr);
  EXPECT_EQ(find_ready_file("1f1b.plan"), nullptr);
}

}  // namespace
}  // namespace pipewright::schedules
