// Schedules that train_gpt did not find in the catalogue: from a file, and searched for costs that
// it measures.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <regex>
#include <string>
#include <vector>

#include "tests/examples/training.h"

namespace pipewright::examples {
namespace {

using tests::Output;
using tests::run_shell;

// A schedule from a file: one that is written by hand, and one that a search finds.
TEST(TrainGpt, RunsASchedulesFile) {
  const std::string file = testing::TempDir() + "/schedule", args = "--steps 5 --microbatches 2 ";
  const Trained alone = train(kTrain + args + "--pp 1 --schedule GPipe");
  EXPECT_EQ(run_shell("printf '0F0,0F1,0B1,0B0\\n1F0,1F1,1B1,1B0\\n' > " + file + ".csv").status,
            0);
  expect_close(train(kTrain + args + "--schedule " + file + ".csv --dp-shard 2"), alone, "csv");
  // Its costs are measured.
  EXPECT_EQ(run_shell(kTrain + args + "--schedule ZBV --record " + file + ".json").status, 0);
  EXPECT_EQ(run_shell("cli/pipewright search --ranks 2 --microbatches 2 --placement v --costs " +
                      file + ".json -o " + file + ".plan")
                .status,
            0);
  expect_close(train(kTrain + args + "--schedule " + file + ".plan"), alone, "plan");
  EXPECT_EQ(run_shell("cli/pipewright search --ranks 2 --microbatches 4 --replicas 2 -o " + file +
                      ".both.plan")
                .status,
            0);
  expect_close(
      train(kTrain + "--steps 5 --microbatches 4 --dp-shard 2 --schedule " + file + ".both.plan"),
      train(kTrain + "--steps 5 --microbatches 4 --pp 1 --schedule GPipe"),
      "a plan with two replicas");
  // Every error of a file, and a shape that is not that of the flags.
  EXPECT_EQ(run_shell("printf '0F0,0F1x,0B1,0B0\\n1F0,1F1,1B1,1C0\\n' > " + file + ".csv").status,
            0);
  const Output bad = run_shell(kTrain + args + "--schedule " + file + ".csv 2>&1");
  EXPECT_EQ(bad.status, 2);
  EXPECT_NE(bad.text.find("schedule.csv:1:8: error[PW006]"), std::string::npos) << bad.text;
  EXPECT_NE(bad.text.find("schedule.csv:2:14: error[PW002]"), std::string::npos) << bad.text;
  const Output shape = run_shell(kTrain + "--microbatches 4 --schedule " + file + ".plan 2>&1");
  EXPECT_EQ(shape.status, 2);
  EXPECT_NE(shape.text.find("expected 4 microbatches, got 2"), std::string::npos) << shape.text;
}

// Stages that a file names recompute, in every dimension, and train the same. Either the file or
// the flag says what recomputes.
TEST(TrainGpt, RecomputesTheStagesThatAFileNames) {
  const std::string file = testing::TempDir() + "/recompute.plan";
  const std::string args = "--steps 5 --microbatches 4 --batch 16 ";
  const Trained alone = train(kTrain + args + "--pp 1 --schedule GPipe");
  for (const std::string schedule : {"1F1B", "ZBV"}) {
    const std::string stages = schedule == "ZBV" ? "0 2 3" : "0";
    ASSERT_EQ(
        run_shell("cli/pipewright print " + schedule +
                  " --ranks 2 --microbatches 4 --format plan | sed 's/^placement/recompute: " +
                  stages + "\\nplacement/' > " + file)
            .status,
        0);
    const std::string run = kTrain + args + "--schedule " + file;
    for (const std::string mesh :
         {"", " --dp-shard 2", " --dp-replicate 2", " --tp 2 --sequence-parallel", " --tie",
          " --dp-shard 2 --param-dtype bf16 --reduce-dtype fp32"}) {
      if (mesh.find("--tie") != std::string::npos || mesh.find("bf16") != std::string::npos)
        expect_close(train(run + mesh), train(kTrain + args + "--schedule " + schedule + mesh),
                     schedule + mesh);
      else
        expect_close(train(run + mesh), alone, schedule + mesh);
    }
    const std::string named = "stage" + std::string(schedule == "ZBV" ? "s 0, 2, 3" : " 0");
    EXPECT_NE(run_shell(run).text.find("; recomputes " + named + "\n"), std::string::npos);
    const Output both = run_shell(run + " --activation-checkpointing 2>&1");
    EXPECT_EQ(both.status, 2);
    EXPECT_EQ(both.text,
              "error: --activation-checkpointing: expected a schedule without stages that "
              "recompute, got " +
                  named + "; leave out the flag, and only these do\n");
  }
}

// On the CPU there is nothing to copy.
TEST(TrainGpt, RunsAFileWhoseStagesOffload) {
  const std::string file = testing::TempDir() + "/offload.plan";
  ASSERT_EQ(run_shell("cli/pipewright print ZBV --ranks 2 --microbatches 4 --offload 1,2 -o " +
                      file + " 2>&1")
                .status,
            0);
  const std::string args = kTrain + "--steps 4 --microbatches 4 --pp 2 --schedule ";
  EXPECT_EQ(train(args + file).losses, train(args + "ZBV").losses);
  const std::string text = run_shell(args + file + " 2>&1").text;
  EXPECT_NE(text.find("; offloads stages 1, 2\n"), std::string::npos) << text;
  EXPECT_NE(text.find("on the CPU, what they save is on the host already"), std::string::npos)
      << text;
}

// Measures, searches and trains, with equal results: searching changes no weight. Ranks would
// refuse to run different programs.
TEST(TrainGpt, SearchesASchedule) {
  const std::string args = "--steps 5 --microbatches 8 --batch 16 ";
  const Trained alone = train(kTrain + args + "--pp 1 --schedule GPipe");
  const std::string search = kTrain + args + "--schedule search ";
  for (const std::string flags : {"--pp 2", "--pp 2 --dp-shard 2 --search-memory 1.5",
                                  "--pp 2 --stages-per-rank 1 --tie --tp 2", "--pp 1"}) {
    if (flags.find("--tie") == std::string::npos) expect_close(train(search + flags), alone, flags);
    const Output output = run_shell(search + flags + " --json");
    const auto end = nlohmann::json::parse(output.text.substr(output.text.rfind("{\"held")));
    for (const char* of : {"predicted", "measured"}) {
      const double bubble = end["search"][of + std::string("_bubble_rate")];
      EXPECT_GT(end["search"][of + std::string("_seconds")], 0);
      EXPECT_GE(bubble, 0);
      EXPECT_LT(bubble, 1);
    }
    const auto& tried = end["search"]["tried"];
    ASSERT_GE(tried.size(), 2u) << end;
    EXPECT_EQ(tried[0]["predicted_seconds"], end["search"]["predicted_seconds"]);
    double before = 0;
    for (const auto& one : tried) {
      EXPECT_GE(one["measured_seconds"], before);  // the fastest first
      before = one["measured_seconds"];
      EXPECT_GT(before, 0);
    }
  }
  const std::string processes = "cli/pipewright launch -n 4 -- ";
  expect_close(train(processes + search + "--pp 4"), alone, "launch");
  const Output shown = run_shell(search + "--pp 2 --search-memory 1.5");
  for (const char* line :
       {"^found:    .*, at most 1.5 activations per rank; predicted .* ms per step",
        "^search: predicted [^;]* ms, bubble [0-9.]+%; measured "})
    EXPECT_TRUE(std::regex_search(shown.text,
                                  std::regex(line, std::regex::ECMAScript | std::regex::multiline)))
        << shown.text;
  EXPECT_EQ(run_shell(search + "--pp 2 --search-memory 0.5 2>&1").text,
            "error: --search-memory: expected at least 1 activations, which one microbatch needs "
            "alone, got 0.5\n");
  EXPECT_EQ(run_shell(kTrain + "--search-memory 2 2>&1").text,
            "error: --search-memory requires --schedule search\n");
}

// One stage per rank, among which 1F1B is, competes with two in a V unless the flag decides.
TEST(TrainGpt, TriesBothPlacements) {
  const std::string args = "--steps 3 --microbatches 8 --schedule search ";
  const auto found_stages = [&](const std::string& flags) {
    const Output output = run_shell(kTrain + args + flags);
    EXPECT_EQ(output.status, 0) << output.text;
    std::smatch match;
    EXPECT_TRUE(std::regex_search(output.text, match, std::regex("schedule: .*, ([0-9]+) stages")))
        << output.text;
    EXPECT_TRUE(std::regex_search(
        output.text,
        std::regex("\ntried:    [^;]+ with " + match[1].str() + " stages, [0-9.e+-]+ ms; ")))
        << output.text;
    return std::stoi(match[1]);
  };
  EXPECT_EQ(found_stages("--stages-per-rank 1"), 2);
  EXPECT_EQ(found_stages("--stages-per-rank 2"), 4);
  EXPECT_EQ(found_stages("--stages-per-rank 3"), 6);
  const int either = found_stages("");
  EXPECT_TRUE(either == 2 || either == 4) << either;
}

// Whatever the search finds must be faster than 1F1B when it runs, not only by its costs; where
// 1F1B needs too much memory, it is not tried.
TEST(TrainGpt, Tries1F1BToo) {
  const auto is_1f1b_tried = [](const std::string& flags) {
    const Output output =
        run_shell(kTrain + "--steps 1 --microbatches 8 --pp 4 --schedule search --json " + flags);
    EXPECT_EQ(output.status, 0) << output.text;
    const auto end = nlohmann::json::parse(output.text.substr(output.text.rfind("{\"held")));
    int count = 0;
    for (const auto& one : end["search"]["tried"])
      count += one["schedule"] == "1F1B" && one["stages"] == 4 ? 1 : 0;
    return count > 0;
  };
  EXPECT_TRUE(is_1f1b_tried(""));
  EXPECT_TRUE(is_1f1b_tried("--search-memory 4"));
  EXPECT_FALSE(is_1f1b_tried("--search-memory 3"));
  EXPECT_FALSE(is_1f1b_tried("--stages-per-rank 2"));
}

// A schedule that is found in less memory keeps fewer activations alive, each of one stage.
TEST(TrainGpt, SearchesWithinItsMemory) {
  const std::string file = testing::TempDir() + "/in_memory.json";
  std::vector<int> peaks;
  for (const std::string memory : {"1", "8"}) {
    const Output output = run_shell(
        kTrain +
        "--steps 2 --microbatches 8 --schedule search --stages-per-rank 2 --search-memory " +
        memory + " --record " + file + " >/dev/null && cli/pipewright simulate --json " + file);
    ASSERT_EQ(output.status, 0) << output.text;
    peaks.push_back(0);
    const auto simulated = nlohmann::json::parse(output.text);
    for (const auto& rank : simulated["ranks"]) peaks.back() += rank["peak_activations"].get<int>();
  }
  EXPECT_LE(peaks[0], 2 * 3);  // I frees one half of an activation
  EXPECT_LT(peaks[0], peaks[1]);
}

// A file of costs per stage, with which pipewright searches a schedule for the next run. Measuring
// changes no weight.
TEST(TrainGpt, WritesAProfile) {
  const std::string file = testing::TempDir() + "/profile";
  const std::string args = "--steps 3 --microbatches 8 ", costs = file + ".json";
  const std::string shape = " --ranks 2 --microbatches 8 --costs " + costs;
  const Trained alone = train(kTrain + args + "--pp 1 --schedule GPipe");
  for (const std::string launch : {"", "cli/pipewright launch -n 4 -- "}) {
    SCOPED_TRACE(launch);
    run_shell("rm -f " + file + "*");
    expect_close(train(launch + kTrain + args + "--schedule ZBV --dp-shard 2 --profile " + costs),
                 alone, "profiled");
    const auto profile = nlohmann::json::parse(run_shell("cat " + costs).text);
    EXPECT_EQ(profile["unit"], "ms");
    for (const char* key :
         {"forward", "backward_input", "backward_weight", "unshard", "reduce_grad"}) {
      ASSERT_EQ(profile[key].size(), 4u) << profile;
      for (const double cost : profile[key]) EXPECT_GT(cost, 0) << key;
    }
    const Output simulated = run_shell("cli/pipewright simulate ZBV" + shape + " 2>&1");
    EXPECT_EQ(simulated.status, 0) << simulated.text;
    const Output searched =
        run_shell("cli/pipewright search --placement v" + shape + " -o " + file + ".plan 2>&1");
    EXPECT_EQ(searched.status, 0) << searched.text;
    expect_close(train(launch + kTrain + args + "--dp-shard 2 --schedule " + file + ".plan"), alone,
                 "found");
  }
  const Output shown = run_shell(kTrain + "--steps 1 --profile " + costs);
  EXPECT_NE(shown.text.find("\ncosts: " + costs + "\n"), std::string::npos) << shown.text;
  EXPECT_EQ(run_shell(kTrain + "--profile /nowhere/file.json 2>&1").text,
            "error: cannot write `/nowhere/file.json`: No such file or directory\n");
  EXPECT_EQ(run_shell(kTrain + "--sample x --resume y --profile z.json 2>&1").text,
            "error: --profile: expected no --sample, which trains nothing\n");
}

// In one go: the schedule that is found takes as long as predicted, if simulated with the profile.
TEST(TrainGpt, ProfilesWhatItSearchesWith) {
  const std::string file = testing::TempDir() + "/searched";
  const Output trained =
      run_shell(kTrain + "--steps 3 --microbatches 8 --schedule search --json --profile " + file +
                ".costs --record " + file + ".json");
  ASSERT_EQ(trained.status, 0) << trained.text;
  const auto end = nlohmann::json::parse(trained.text.substr(trained.text.rfind("{\"held")));
  const Output simulated = run_shell("cli/pipewright print " + file + ".json --format plan > " +
                                     file + ".plan && cli/pipewright simulate --json " + file +
                                     ".plan --costs " + file + ".costs");
  ASSERT_EQ(simulated.status, 0) << simulated.text;
  const double makespan = nlohmann::json::parse(simulated.text)["makespan"];
  EXPECT_NEAR(end["search"]["predicted_seconds"], makespan / 1e3, 1e-6 * makespan);
}

}  // namespace
}  // namespace pipewright::examples
