// The figures that diff prints for two schedules equal those of simulate for each one.
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/support/shell/shell.h"

namespace {

nlohmann::json run(const std::string& arguments) {
  return nlohmann::json::parse(
      pipewright::tests::run_shell("cli/pipewright " + arguments + " --json").text);
}

TEST(DiffTest, ItsNumbersAreThoseOfSimulate) {
  const std::string shape = " --ranks 4 --microbatches 8";
  for (const std::string more : {"", " --comm 0.25 --scale W=0.5 --slow 1=1.5",
                                 " --level compute_comms --comm 0.25 --channels peer",
                                 " --level compute_comms --comm 0.5 --receives latest"}) {
    for (const auto& [before, after] : {std::pair("1F1B", "ZB-H1"),
                                        {"ZBV", "V-Half"},
                                        {"Interleaved1F1B", "DualPipeV"},
                                        {"GPipe", "GPipe"}}) {
      const auto diff = run(std::string("diff ") + before + " " + after + shape + more);
      for (const auto& [side, name] : {std::pair("before", before), {"after", after}}) {
        const auto alone = run(std::string("simulate ") + name + shape + more);
        for (const char* number : {"makespan", "cost", "bubble_rate"})
          EXPECT_EQ(diff[side][number], alone[number]) << name << more;
        int peak = 0;
        for (const auto& rank : alone["ranks"])
          peak = std::max(peak, rank["peak_activations"].get<int>());
        EXPECT_EQ(diff[side]["peak_activations"], peak);
      }
      EXPECT_EQ(diff["equal"], std::string(before) == after);
      EXPECT_EQ(diff["stage_ratio"], 1);
    }
  }
}

// Two schedules of one model with different numbers of stages: the second one's default times are
// scaled, so that both do the same work.
TEST(DiffTest, OneModelHasTheSameTimeInMoreStages) {
  const std::string shape = " --ranks 4 --microbatches 8";
  const auto diff = run("diff 1F1B Interleaved1F1B" + shape + " --comm 0.25 --slow 1=2");
  EXPECT_EQ(diff["stage_ratio"], 0.5);
  const auto alone =
      run("simulate Interleaved1F1B" + shape + " --comm 0.25 --slow 1=2 --scale F=0.5,B=0.5");
  EXPECT_EQ(diff["after"]["makespan"], alone["makespan"]);
  // arXiv 2104.04473, section 2.2: the bubble of 1F1B divided by the stages per rank.
  const auto ideal = run("diff 1F1B Interleaved1F1B" + shape);
  EXPECT_EQ(ideal["before"]["makespan"], 24 + 9);
  EXPECT_EQ(ideal["after"]["makespan"], 24 + 9 / 2.0);
  EXPECT_EQ(run("diff Interleaved1F1B 1F1B" + shape)["stage_ratio"], 2);
  // Given times are those of a stage, whichever schedule it belongs to.
  for (const std::string given : {" --forward 1", " --backward-input 1", " --backward-weight 1"})
    EXPECT_EQ(run("diff 1F1B Interleaved1F1B" + shape + given)["stage_ratio"], 1);
}

}  // namespace
