// train_gpt from the command line: equal losses for every mesh, as threads and as processes; it
// learns; output; errors.
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "pipewright/schedules/registry.h"
#include "tests/support/shell/shell.h"

namespace pipewright::examples {
namespace {

using tests::Output;
using tests::run_shell;

// A document of the repository is the training data, so that the test needs no other file.
const std::string kTrain =
    "examples/train_gpt --data docs/command_line.md --layers 3 --dim 32 --context 32 ";

struct Trained {
  std::vector<double> losses;
  double held_back = 0, bigram = 0;
};

Trained train(const std::string& command) {
  const Output output = run_shell(command + " --json");
  EXPECT_EQ(output.status, 0) << output.text;
  Trained result;
  std::istringstream lines(output.text);
  for (std::string line; std::getline(lines, line);) {
    const auto object = nlohmann::json::parse(line.substr(line.find('{')));
    if (object.contains("step")) {
      EXPECT_EQ(object["step"], result.losses.size());
      EXPECT_GT(object["tokens_per_s"], 0);
      result.losses.push_back(object["loss"]);
    } else {
      result.held_back = object["held_back_loss"];
      result.bigram = object["bigram_loss"];
    }
  }
  return result;
}

void expect_close(const Trained& left, const Trained& right, const std::string& what) {
  ASSERT_EQ(left.losses.size(), right.losses.size()) << what;
  for (size_t step = 0; step < left.losses.size(); ++step)
    EXPECT_NEAR(left.losses[step], right.losses[step], 1e-5) << what << ", step " << step;
  EXPECT_NEAR(left.held_back, right.held_back, 1e-5) << what;
  EXPECT_NEAR(left.bigram, right.bigram, 1e-9) << what;
}

TEST(TrainGpt, EveryScheduleMatchesASingleRank) {
  const std::string args = "--steps 20 --batch 16 --microbatches 8 ";
  const Trained alone = train(kTrain + args + "--pp 1 --schedule GPipe");
  EXPECT_EQ(alone.losses.size(), 20u);
  EXPECT_LT(alone.losses.back(), alone.losses.front());
  for (const schedules::ScheduleSpec* spec : schedules::all_schedules()) {
    const std::string schedule = " --schedule " + std::string(spec->name);
    expect_close(train(kTrain + args + "--pp 2" + schedule), alone, schedule);
  }
  // A single microbatch changes only the order in which the mean is taken.
  expect_close(train(kTrain + "--steps 20 --batch 16 --microbatches 1 --pp 1 --schedule GPipe"),
               alone, "one microbatch");
}

// Two replicas of a pipeline of two ranks, each with half of every batch, or the same sharded; or
// two replicas that are sharded over two ranks each.
class DataParallel : public testing::TestWithParam<std::string> {};

TEST_P(DataParallel, MatchesASingleRank) {
  const bool both = GetParam() == "both";
  const std::string args =
      std::string("--steps ") + (both ? "20" : "10") + " --batch 16 --microbatches 4 ";
  const std::string copies = both ? "--dp-replicate 2 --dp-shard 2" : "--dp-" + GetParam() + " 2";
  const Trained alone = train(kTrain + args + "--pp 1 --schedule GPipe");
  for (const schedules::ScheduleSpec* spec : schedules::all_schedules()) {
    const std::string schedule = "--pp 2 " + copies + " --schedule " + std::string(spec->name);
    expect_close(train(kTrain + args + schedule), alone, schedule);
  }
  if (both) return;
  // A longer training, over processes.
  const std::string longer = "--steps 50 --batch 16 --microbatches 4 ";
  const std::string schedule = "--pp 2 --dp-" + GetParam() + " 2 --schedule ZBV";
  expect_close(train("cli/pipewright launch -n 4 -- " + kTrain + longer + schedule),
               train(kTrain + longer + "--pp 1 --schedule GPipe"), "launch");
}

INSTANTIATE_TEST_SUITE_P(TrainGpt, DataParallel, testing::Values("replicate", "shard", "both"));

// Pipelines of two ranks whose layers are split over two ranks and sharded over two.
TEST(TrainGpt, TensorParallelMatchesASingleRank) {
  const std::string args = "--steps 20 --batch 16 --microbatches 4 ";
  const Trained alone = train(kTrain + args + "--pp 1 --schedule GPipe");
  for (const schedules::ScheduleSpec* spec : schedules::all_schedules()) {
    const std::string schedule = "--pp 2 --tp 2 --dp-shard 2 --schedule " + std::string(spec->name);
    expect_close(train(kTrain + args + schedule), alone, schedule);
  }
  for (const char* schedule : {"1F1B", "Interleaved1F1B", "ZBV", "InterleavedZeroBubble"}) {
    const std::string mesh = "--pp 2 --tp 2 --dp-shard 2 --sequence-parallel --schedule ";
    expect_close(train(kTrain + args + mesh + schedule), alone, mesh + schedule);
  }
  for (const std::string mesh : {"--pp 1 --tp 2", "--pp 1 --tp 2 --sequence-parallel",
                                 "--pp 2 --tp 2 --dp-replicate 2 --schedule ZBV",
                                 "--pp 1 --tp 2 --dp-replicate 2 --dp-shard 2"})
    expect_close(train(kTrain + args + mesh), alone, mesh);
}

// The first and the last stage share the token embedding: on two ranks or on one, replicated,
// sharded and split, whose gradients are clipped once.
TEST(TrainGpt, TiedEmbeddingsMatchASingleRank) {
  const std::string args = "--tie --steps 20 --batch 16 --microbatches 4 --clip 0.5 ";
  const Trained alone = train(kTrain + args + "--pp 1 --schedule GPipe");
  EXPECT_NE(alone.losses, train(kTrain + "--steps 20 --pp 1 --schedule GPipe --clip 0.5").losses);
  for (const schedules::ScheduleSpec* spec : schedules::all_schedules()) {
    const std::string schedule = "--pp 2 --schedule " + std::string(spec->name);
    expect_close(train(kTrain + args + schedule), alone, schedule);
  }
  for (const std::string mesh :
       {"--dp-replicate 2", "--dp-shard 2", "--dp-replicate 2 --dp-shard 2",
        "--tp 2 --sequence-parallel", "--tp 2 --dp-shard 2"}) {
    for (const std::string schedule : {"--pp 2 --schedule InterleavedZeroBubble",
                                       "--pp 2 --schedule ZBV", "--pp 1 --schedule GPipe"})
      expect_close(train(kTrain + args + mesh + " " + schedule), alone, mesh + schedule);
  }
  expect_close(train("cli/pipewright launch -n 4 -- " + kTrain + args +
                     "--pp 4 --stages-per-rank 1 --schedule 1F1B"),
               alone, "launch");
}

// RMSNorm, rotary positions, recomputed blocks, stages of uneven size, and a learning rate that
// changes: against one rank with one microbatch, which stores everything. 19 windows are 9 and 10
// on two copies of the pipeline, in microbatches of two and three.
TEST(TrainGpt, EveryOptionOfTheModelMatchesASingleRank) {
  const std::string args = "--norm rms --rope --tie --warmup 5 --cosine --steps 20 --batch 19 ";
  const Trained alone = train(kTrain + args + "--pp 1 --schedule GPipe --microbatches 1");
  const std::string parallel = kTrain + args + "--activation-checkpointing --balance " +
                               "--microbatches 4 --pp 2 --schedule ";
  for (const schedules::ScheduleSpec* spec : schedules::all_schedules())
    expect_close(train(parallel + std::string(spec->name) + " --dp-shard 2"), alone,
                 std::string(spec->name));
  for (const std::string mesh : {"1F1B --tp 2 --sequence-parallel", "ZBV --dp-replicate 2",
                                 "ZBV --tp 2 --dp-replicate 2", "InterleavedZeroBubble"})
    expect_close(train(parallel + mesh), alone, mesh);
}

TEST(TrainGpt, EachOptionOfTheModelMatters) {
  const std::string args = kTrain + "--steps 3 --pp 1 --schedule GPipe ";
  std::vector<std::vector<double>> all = {train(args).losses};
  for (const char* flag :
       {"--norm rms", "--rope", "--tie", "--warmup 3", "--cosine", "--clip 0.5", "--lr 0.001"}) {
    all.push_back(train(args + flag).losses);
    for (size_t i = 0; i + 1 < all.size(); ++i) EXPECT_NE(all[i], all.back()) << flag;
  }
  EXPECT_EQ(train(args + "--activation-checkpointing").losses, all[0]);
}

// Over processes, and with heads, MLPs and a vocabulary of which each of three ranks has a part:
// 256 tokens are 86, 86 and 84.
TEST(TrainGpt, TensorParallelOverProcesses) {
  const std::string args =
      "examples/train_gpt --data docs/command_line.md --layers 3 --dim 48 --context 32 --steps 10 "
      "--batch 16 --microbatches 4 ";
  const Trained alone = train(args + "--pp 1 --schedule GPipe --clip 0.5");
  expect_close(train("cli/pipewright launch -n 6 -- " + args +
                     "--pp 2 --tp 3 --schedule InterleavedZeroBubble --clip 0.5"),
               alone, "launch");
}

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

TEST(TrainGpt, ProcessesMatchThreads) {
  const std::string args = "--steps 5 --pp 4 --schedule ZBV --microbatches 8";
  expect_close(train("cli/pipewright launch -n 4 -- " + kTrain + args), train(kTrain + args),
               "launch");
}

TEST(TrainGpt, SeedsMatter) {
  const Trained one = train(kTrain + "--steps 2 --seed 1"),
                two = train(kTrain + "--steps 2 --seed 2");
  EXPECT_NE(one.losses[0], two.losses[0]);
  EXPECT_EQ(one.losses, train(kTrain + "--steps 2 --seed 1").losses);
}

// Beats a bigram model on held-back text.
TEST(TrainGpt, Learns) {
  const Trained learned = train("examples/train_gpt --data docs/command_line.md --steps 150");
  EXPECT_LT(learned.held_back, learned.bigram);
}

TEST(TrainGpt, ClipsTheNormOfTheWholeModel) {
  const std::string args = "--steps 10 --batch 16 --microbatches 4 ";
  const Trained alone = train(kTrain + args + "--pp 1 --schedule GPipe --clip 0.5");
  EXPECT_NE(alone.losses, train(kTrain + args + "--pp 1 --schedule GPipe").losses);
  for (const char* copies : {"--dp-replicate 2 ", "--dp-shard 2 --dp-replicate 2 ", "--tp 2 ",
                             "--tp 2 --dp-shard 2 --sequence-parallel "})
    expect_close(train(kTrain + args + copies + "--schedule ZBV --clip 0.5"), alone, copies);
}

// In bf16 with fp32 reductions, replicated and sharded: as good as fp32.
TEST(TrainGpt, LearnsInMixedPrecision) {
  const std::string args = kTrain + "--steps 60 ";
  const Trained exact = train(args);
  for (const std::string copies : {"--dp-replicate 2", "--dp-shard 2", "--tp 2 --dp-replicate 2"}) {
    const Trained mixed =
        train(args + copies + " --schedule ZBV --param-dtype bf16 --reduce-dtype fp32");
    EXPECT_NE(mixed.losses, exact.losses);
    EXPECT_NEAR(mixed.losses[0], exact.losses[0], 0.01);
    EXPECT_NEAR(mixed.held_back, exact.held_back, 0.02) << copies;
  }
  const std::string few = "--steps 3 --dp-shard 2 --param-dtype bf16 --reduce-dtype ";
  for (const std::string reduce : {"bf16", "fp32"}) {
    expect_close(train("cli/pipewright launch -n 4 -- " + kTrain + few + reduce),
                 train(kTrain + few + reduce), "launch " + reduce);
  }
}

// One pipeline is recorded, as threads and as processes; pipewright reads what was written.
TEST(TrainGpt, RecordsAStep) {
  const std::string file = testing::TempDir() + "/recorded_step.json";
  const std::string args = kTrain + "--steps 3 --schedule ZBV --json --record " + file;
  const std::map<std::string, std::string> launches = {
      {"", " --dp-shard 2 --tp 2"}, {"cli/pipewright launch -n 4 -- ", " --dp-shard 2"}};
  for (const auto& [launch, mesh] : launches) {
    for (const std::string step : {"", " --record-step 1"}) {
      SCOPED_TRACE(launch + step);
      const Output output = run_shell("rm -f " + file + "; " + launch + args + mesh + step);
      ASSERT_EQ(output.status, 0) << output.text;
      const size_t last = output.text.rfind('{');
      const auto end = nlohmann::json::parse(output.text.substr(last));
      EXPECT_EQ(end["recorded_step"], step.empty() ? 2 : 1);
      const Output read = run_shell("cli/pipewright simulate --json " + file);
      ASSERT_EQ(read.status, 0) << read.text;
      const auto drift = nlohmann::json::parse(read.text)["drift"];
      EXPECT_NEAR(drift["measured"]["makespan"], 1e3 * end["recorded_seconds"].get<double>(), 1e-5);
      EXPECT_NEAR(drift["measured"]["bubble_rate"], end["bubble_rate"], 1e-5);
      EXPECT_NEAR(drift["predicted"]["bubble_rate"], end["predicted_bubble_rate"], 1e-5);
      const Output drawn = run_shell("cli/pipewright print " + file + " --format timeline");
      EXPECT_NE(drawn.text.find("measured: makespan"), std::string::npos) << drawn.text;
    }
  }
  const Output plain = run_shell(kTrain + "--steps 2 --record " + file);
  EXPECT_NE(plain.text.find("step 2 recorded: "), std::string::npos) << plain.text;
  EXPECT_EQ(run_shell(kTrain + "--steps 2 --record /nowhere/file.json 2>&1").text,
            "error: cannot write `/nowhere/file.json`: No such file or directory\n");
  EXPECT_EQ(run_shell(kTrain + "--steps 2 --record " + file + " --record-step 2 2>&1").text,
            "error: --record-step: expected a step below --steps 2, got 2\n");
  EXPECT_EQ(run_shell(kTrain + "--record-step 2 2>&1").text,
            "error: --record-step requires --record\n");
}

TEST(TrainGpt, PlainLinesWithoutATerminal) {
  const Output output = run_shell(kTrain + "--steps 3");
  EXPECT_EQ(output.status, 0);
  EXPECT_EQ(output.text.find("step 1 of 3  loss "), 0u) << output.text;
  EXPECT_NE(output.text.find("\nstep 3 of 3  loss "), std::string::npos) << output.text;
  EXPECT_NE(output.text.find("\nheld-back text: loss "), std::string::npos) << output.text;
  EXPECT_EQ(output.text.find('\r'), std::string::npos);
}

TEST(TrainGpt, ABarOnATerminal) {
  const Output output = run_shell("script -qec '" + kTrain + "--steps 3' /dev/null");
  EXPECT_NE(output.text.find("\r[##########....................] 1/3  loss "), std::string::npos)
      << output.text;
  EXPECT_NE(output.text.find("[##############################] 3/3"), std::string::npos);
}

TEST(TrainGpt, Errors) {
  const auto expect_error = [](const std::string& command, int status, const std::string& text) {
    const Output output = run_shell(command + " 2>&1");
    EXPECT_EQ(output.status, status) << command;
    EXPECT_EQ(output.text.find(text), 0u) << output.text;
  };
  expect_error("examples/train_gpt --schedule 1F1C", 2,
               "error: --schedule: there is no schedule `1F1C`; did you mean `1F1B`?\n");
  expect_error(
      "examples/train_gpt --batch 3", 2,
      "error: --batch: expected at least --microbatches 4 times --dp-replicate 1, got 3\n");
  expect_error("examples/train_gpt --dim 40", 2,
               "error: --dim: expected a multiple of the head dimension 16, got 40\n");
  expect_error("examples/train_gpt --tp 3", 2,
               "error: --tp: expected a divisor of 4, the attention heads of --dim 64, got 3\n");
  expect_error(
      "examples/train_gpt --tp 2 --sequence-parallel --context 63", 2,
      "error: --context: expected a multiple of --tp 2 with --sequence-parallel, got 63\n");
  expect_error("examples/train_gpt --data /nowhere", 1, "error: cannot open `/nowhere`\n");
  expect_error("examples/train_gpt --pp none", 2, "--pp: ");
  expect_error("examples/train_gpt --device cuda", 2,
               "error: --device cuda: this program was built without CUDA; build "
               "//examples:train_gpt_cuda with --config=cuda\n");
  expect_error("examples/train_gpt --device cuda --record run.json", 2,
               "error: --record: expected --device cpu, got cuda\n");
  expect_error("examples/train_gpt --schedule ZBV --stages-per-rank 3", 2, "error: ");
  expect_error(
      "WORLD_SIZE=3 RANK=0 MASTER_ADDR=127.0.0.1 MASTER_PORT=1 examples/train_gpt "
      "--data docs/command_line.md",
      2, "error: --pp 2 times --dp-replicate 1: expected 2 processes, got 3\n");
  expect_error(
      "WORLD_SIZE=2 RANK=0 MASTER_ADDR=127.0.0.1 MASTER_PORT=1 examples/train_gpt "
      "--data docs/command_line.md --tp 2",
      2, "error: --pp 2 times --dp-replicate 1 times --tp 2: expected 4 processes, got 2\n");
  expect_error(
      "WORLD_SIZE=2 RANK=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=1 examples/train_gpt "
      "--data docs/command_line.md",
      1, "error: environment variable RANK is invalid: expected a rank from 0 to 1, got `2`\n");
}

}  // namespace
}  // namespace pipewright::examples
