// That each action of a step is an NVTX range. Needs NVTX's headers, which come with CUDA, but no
// GPU: this file takes the place of the tool, as NVTX lets a program do.
#include "pipewright/executor/nvtx_ranges.h"

#include <gtest/gtest.h>
#include <nvtx3/nvToolsExt.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "pipewright/comms/threads/threads.h"
#include "pipewright/executor/executor.h"
#include "pipewright/ir/text/action_text.h"
#include "pipewright/schedules/registry.h"
#include "tests/executor/models.h"
#include "tests/executor/trainer.h"
#include "tests/support/ranks/ranks.h"

namespace {

std::mutex ranges_mutex;
std::map<std::thread::id, std::vector<std::string>> open_ranges, ended_ranges;  // by thread

int begin_range(const char* name) {
  const std::lock_guard lock(ranges_mutex);
  open_ranges[std::this_thread::get_id()].emplace_back(name);
  return 0;
}

int end_range() {
  const std::lock_guard lock(ranges_mutex);
  std::vector<std::string>& open = open_ranges[std::this_thread::get_id()];
  ended_ranges[std::this_thread::get_id()].push_back(open.back());
  open.pop_back();
  return 0;
}

// What NVTX calls before the first range: sets the functions that it forwards ranges to.
int listen(NvtxGetExportTableFunc_t get_table) {
  const auto* callbacks =
      static_cast<const NvtxExportTableCallbacks*>(get_table(NVTX_ETID_CALLBACKS));
  NvtxFunctionTable table = nullptr;
  unsigned int size = 0;
  if (!callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE, &table, &size)) return 0;
  *table[NVTX_CBID_CORE_RangePushA] = reinterpret_cast<NvtxFunctionPointer>(&begin_range);
  *table[NVTX_CBID_CORE_RangePop] = reinterpret_cast<NvtxFunctionPointer>(&end_range);
  return 1;
}

}  // namespace

namespace pipewright::executor {
namespace {

// A step on two ranks, which are threads of this process.
void train(const ir::Program& program) {
  std::vector<comms::World> worlds = comms::thread_worlds(2);
  const auto errors = tests::errors_of_ranks(2, [&](int rank) {
    Trainer(program, Parallel::kNone, 1, worlds[static_cast<size_t>(rank)]).train(0);
  });
  EXPECT_EQ(errors, std::vector<std::string>(2));
}

TEST(NvtxRanges, AreTheActionsOfAStep) {
  InitializeInjectionNvtx2_fnptr = &listen;  // a weak symbol, null where no tool is linked
  const schedules::ScheduleSpec& spec = *schedules::find_schedule("1F1B");
  const ir::Program program = make_program(spec, {2, schedules::default_stages(spec, 2), 4});
  {
    const NvtxRanges ranges;
    train(program);
  }
  train(program);  // this one is not shown
  std::vector<std::vector<std::string>> found, expected;
  for (const auto& [thread, ranges] : ended_ranges) found.push_back(ranges);
  for (const ir::Row& row : program.rows) {
    std::vector<std::string>& ranges = expected.emplace_back();
    for (const ir::Action& action : row) ranges.push_back("PP:" + ir::to_string(action));
  }
  std::ranges::sort(found);
  std::ranges::sort(expected);
  EXPECT_EQ(found, expected);
  for (const auto& [thread, ranges] : open_ranges) EXPECT_TRUE(ranges.empty());
}

}  // namespace
}  // namespace pipewright::executor
