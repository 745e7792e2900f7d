// What a person and other programs see of train_gpt: its lines, metrics, recordings and errors.
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <regex>
#include <sstream>
#include <string>

#include "tests/checkpoint/scratch.h"
#include "tests/examples/training.h"

namespace pipewright::examples {
namespace {

using tests::Output;
using tests::run_shell;

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
  const std::string args = "--batch 8 --pp 2 --warmup 10 --metrics " + file + ".jsonl --save " +
                           file + " --tensorboard " + file + "_events/run";
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
  const std::string events = run_shell("cat " + file + "_events/run/events.out.tfevents.*").text;
  for (const char* tag : {"loss", "grad_norm", "lr", "tokens_per_s", "peak_bytes"}) {
    size_t steps = 0;
    // A message's field 1 with a tag of that length.
    const std::string field = std::string("\n") + static_cast<char>(std::strlen(tag)) + tag;
    for (size_t at = 0; (at = events.find(field, at)) != std::string::npos; ++at) ++steps;
    EXPECT_EQ(steps, 4) << tag;
  }
  EXPECT_EQ(
      run_shell(kTrain + "--steps 1 --metrics /nowhere/file 2>&1 >/dev/null").text.find("error: "),
      0u);
}

TEST(TrainGpt, ABarOnATerminal) {
  const Output output = run_shell("script -qec '" + kTrain + "--steps 3' /dev/null");
  EXPECT_NE(output.text.find("\r[##########....................] 1/3  loss "), std::string::npos)
      << output.text;
  EXPECT_NE(output.text.find("[##############################] 3/3"), std::string::npos);
  // A bar has no gradient norm, which is then not computed; it trains the same.
  const std::string plain = run_shell(kTrain + "--steps 3").text;
  const std::string held_back = plain.substr(plain.rfind("held-back text: loss"), 28);
  EXPECT_NE(output.text.find(held_back), std::string::npos) << output.text << plain;
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
  expect_error("examples/train_gpt --sequence-parallel", 2,
               "error: --sequence-parallel: expected --tp of at least 2, got 1\n");
  for (const std::string value : {"-1", "nan", "inf", "x"}) {
    expect_error("examples/train_gpt --clip " + value, 2,
                 "--clip: expected a number from 0, got `" + value + "`");
  }
  expect_error("examples/train_gpt --lr 0", 2, "--lr: expected a number above 0, got `0`");
  expect_error("examples/train_gpt --data /nowhere", 1, "error: cannot open `/nowhere`\n");
  expect_error("examples/train_gpt --pp none", 2, "--pp: ");
  expect_error("examples/train_gpt --device cuda", 2,
               "error: --device cuda: this program was built without CUDA; build "
               "//examples:train_gpt_cuda with --config=cuda\n");
  expect_error("examples/train_gpt --device cuda --profile costs.json", 2,
               "error: --profile: expected --device cpu, got cuda\n");
  expect_error("examples/train_gpt --device cuda --balance measured", 2,
               "error: --balance measured: expected --device cpu, got cuda\n");
  expect_error("examples/train_gpt --balance guessed", 2, "--balance: ");
  const std::string plan = tests::scratch_folder("cut") / "cut.plan";
  const tests::Output made = tests::run_shell(
      "cli/pipewright costs --blocks 5 --hidden-size 64 --heads 4 --vocabulary 256 --seq 64 --gpu "
      "a100 | cli/pipewright search --costs - --ranks 2 --microbatches 4 --cut 3,4 -o " +
      plan);
  EXPECT_EQ(made.status, 0) << made.text;
  expect_error("examples/train_gpt --schedule " + plan, 2,
               "error: --schedule: expected a cut of 4 blocks, or of these between embedding and "
               "output layer, got one of 7 layers\n");
  expect_error("examples/train_gpt --layers 5 --balance --schedule " + plan, 2,
               "error: --balance: expected a schedule without a cut, got one with 7 layers\n");
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
