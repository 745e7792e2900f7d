// train_gpt from the command line: equal losses for every mesh, as threads and as processes; it
// learns; output; errors.
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <regex>
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

// The line that torchtitan prints, what will run before it, and what came of it after.
TEST(TrainGpt, PlainLinesWithoutATerminal) {
  const std::string file = testing::TempDir() + "/plain";
  const Output output = run_shell(kTrain + "--steps 3 --dp-shard 2 --schedule ZBV --save " + file +
                                  ".ckpt --record " + file + ".json");
  EXPECT_EQ(output.status, 0);
  for (const char* line :
       {"^model:    3 blocks of width 32, context 32; 16 windows per step$",
        "^mesh:     pp 2 x dp-shard 2$",
        "^schedule: ZBV[A-Za-z]*, 4 stages, 4 microbatches; bubble [0-9.]+% if F, I and W take "
        "equally "
        "long$",
        "^rank 0:   stage 0 \\(embedding, 0 blocks\\), stage 3 \\(1 block, output\\); [0-9.]+ MiB "
        "of",
        "^rank 2:   stage 1 \\(1 block\\), stage 2 \\(1 block\\); 0\\.[0-9]+ MiB of weights, ",
        "^step:  1  loss:  [0-9.]{6}  grad_norm:  [0-9.]{6}  memory:  [0-9.]+GiB\\([0-9.]+%\\)  "
        "tps: "
        "[0-9,]+  left: 0:[0-9]{2}$",
        "^step:  3  loss: .*  bubble: [0-9.]+% \\(predicted [0-9.]+%\\)  left: 0:00$",
        "^sample: ", "^checkpoint: .*plain.ckpt$", "^recording: .*plain.json$",
        "^held-back text: loss [0-9.]{6}; a bigram table has [0-9.]{6}$"}) {
    EXPECT_TRUE(std::regex_search(output.text,
                                  std::regex(line, std::regex::ECMAScript | std::regex::multiline)))
        << line << "\n"
        << output.text;
  }
  EXPECT_EQ(output.text.find('\r'), std::string::npos);
}

// Per step, also for the steps of a run that goes on.
TEST(TrainGpt, WritesMetrics) {
  const std::string file = testing::TempDir() + "/metrics";
  const std::string args =
      "--batch 8 --pp 2 --warmup 10 --metrics " + file + ".jsonl --save " + file;
  const Output output =
      run_shell("rm -rf " + file + "*; " + kTrain + args + " --steps 2 --json && " + kTrain + args +
                " --steps 4 --resume latest --json 2>/dev/null");
  ASSERT_EQ(output.status, 0) << output.text;
  std::istringstream lines(run_shell("cat " + file + ".jsonl").text), shown(output.text);
  int step = 0;
  for (std::string line; std::getline(lines, line); ++step) {
    const auto metrics = nlohmann::json::parse(line);
    EXPECT_EQ(metrics["step"], step);
    EXPECT_NEAR(metrics["lr"], 0.003 * (step + 1) / 10, 1e-9);
    EXPECT_EQ(metrics["tokens"], (step + 1) * 8 * 32);
    EXPECT_GT(metrics["grad_norm"], 0);
    EXPECT_GT(metrics["peak_bytes"], 1'000'000);
    EXPECT_NEAR(metrics["tokens_per_s"].get<double>() * metrics["step_seconds"].get<double>(),
                8 * 32, 1);
    EXPECT_EQ(metrics.contains("bubble_rate"), step % 2 == 1);  // the second step of each run
    std::string same;
    while (std::getline(shown, same) && same.find("held_back") != std::string::npos) {
    }
    EXPECT_EQ(nlohmann::json::parse(same)["loss"], metrics["loss"]);
  }
  EXPECT_EQ(step, 4);
  EXPECT_EQ(
      run_shell(kTrain + "--steps 1 --metrics /nowhere/file 2>&1 >/dev/null").text.find("error: "),
      0u);
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

// A schedule that is found in less memory keeps fewer activations alive, each of one stage.
TEST(TrainGpt, SearchesWithinItsMemory) {
  const std::string file = testing::TempDir() + "/in_memory.json";
  std::vector<int> peaks;
  for (const std::string memory : {"1", "8"}) {
    const Output output = run_shell(
        kTrain + "--steps 2 --microbatches 8 --schedule search --search-memory " + memory +
        " --record " + file + " >/dev/null && cli/pipewright simulate --json " + file);
    ASSERT_EQ(output.status, 0) << output.text;
    peaks.push_back(0);
    const auto simulated = nlohmann::json::parse(output.text);
    for (const auto& rank : simulated["ranks"]) peaks.back() += rank["peak_activations"].get<int>();
  }
  EXPECT_LE(peaks[0], 2 * 3);  // I frees one half of an activation
  EXPECT_LT(peaks[0], peaks[1]);
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
