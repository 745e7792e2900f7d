// Checkpoints of train_gpt: a run that is interrupted and resumed is the same training, on the same
// mesh bit for bit, and within rounding on any other.
#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "tests/checkpoint/scratch.h"
#include "tests/support/shell/shell.h"

namespace pipewright::examples {
namespace {

using tests::Output;
using tests::read_file;
using tests::run_shell;
using tests::scratch_folder;

const std::string kTrain =
    "examples/train_gpt --layers 4 --dim 32 --context 16 --batch 16 "
    "--json ";

struct Trained {
  std::map<int, double> losses;  // by step
  double held_back = 0;
};

Trained train(const std::string& args, const std::string& launch = "") {
  const Output output = run_shell(launch + kTrain + args);
  EXPECT_EQ(output.status, 0) << args << "\n" << output.text;
  Trained result;
  std::istringstream lines(output.text);
  for (std::string line; std::getline(lines, line);) {
    const auto object = nlohmann::json::parse(line.substr(line.find('{')));
    if (object.contains("step"))
      result.losses[object["step"]] = object["loss"];
    else
      result.held_back = object["held_back_loss"];
  }
  return result;
}

// The losses from `first` on.
Trained from(Trained trained, int first) {
  trained.losses.erase(trained.losses.begin(), trained.losses.lower_bound(first));
  return trained;
}

void expect_close(const Trained& left, const Trained& right, const std::string& what) {
  ASSERT_FALSE(left.losses.empty()) << what;
  ASSERT_EQ(left.losses.size(), right.losses.size()) << what;
  for (const auto& [step, loss] : left.losses)
    EXPECT_NEAR(loss, right.losses.at(step), 1e-5) << what << ", step " << step;
  EXPECT_NEAR(left.held_back, right.held_back, 1e-5) << what;
}

// All tensors of a checkpoint, the optimizer's too, as one safetensors file.
std::string exported(const std::filesystem::path& checkpoint) {
  const std::string file = scratch_folder("exported") / "all.safetensors";
  const Output output = run_shell("cli/pipewright checkpoint export " + checkpoint.native() +
                                  " --all -o " + file + " 2>&1");
  EXPECT_EQ(output.status, 0) << output.text;
  return read_file(file);
}

class SameMesh : public testing::TestWithParam<std::string> {};

TEST_P(SameMesh, ResumesBitForBit) {
  const std::string mesh = GetParam() + " ";
  const auto one = scratch_folder("one"), two = scratch_folder("two");
  const Trained straight = train(mesh + "--steps 4 --save " + one.native());
  EXPECT_EQ(straight.losses.size(), 4u);
  const std::string save = "--save " + two.native() + " ";
  train(mesh + "--steps 2 " + save);
  const Trained resumed = train(mesh + "--steps 4 --resume latest " + save);
  EXPECT_EQ(resumed.losses, from(straight, 2).losses);
  EXPECT_EQ(resumed.held_back, straight.held_back);
  EXPECT_TRUE(exported(one / "step-000004") == exported(two / "step-000004"));
}

INSTANTIATE_TEST_SUITE_P(Resume, SameMesh,
                         testing::Values("--pp 2 --schedule ZBV --clip 0.5",
                                         "--pp 2 --dp-replicate 2 --schedule Interleaved1F1B",
                                         "--dp-replicate 2 --dp-shard 2 --pp 1",
                                         "--pp 2 --dp-shard 2 --param-dtype bf16",
                                         "--pp 2 --tp 2 --dp-shard 2 --clip 0.5",
                                         "--pp 2 --dp-shard 2 --tie --clip 0.5",
                                         "--pp 2 --norm rms --rope --warmup 3 --balance"));

TEST(Resume, OnAnyOtherMesh) {
  const auto folder = scratch_folder("meshes");
  const Trained straight = train("--pp 2 --schedule ZBV --steps 4");
  const std::vector<std::pair<std::string, std::string>> meshes = {
      {"--pp 1 --schedule GPipe", "--pp 4 --schedule 1F1B"},
      {"--pp 2 --schedule ZBV", "--pp 1 --dp-shard 4 --schedule GPipe"},
      {"--pp 2 --dp-shard 2 --schedule Interleaved1F1B", "--pp 1 --dp-replicate 2"},
      {"--pp 1 --dp-replicate 2 --dp-shard 2", "--pp 2 --schedule DualPipeV"},
      {"--pp 2 --tp 2 --schedule ZBV", "--pp 1 --schedule GPipe"},
      {"--pp 1 --schedule GPipe", "--pp 2 --tp 2 --sequence-parallel --schedule 1F1B"},
      {"--pp 1 --tp 2 --dp-shard 2 --dp-replicate 2", "--pp 2 --dp-shard 2"},
  };
  for (const auto& [saves, loads] : meshes) {
    std::filesystem::remove_all(folder);
    const Trained first = train(saves + " --steps 2 --save " + folder.native());
    const std::string resume = " --resume " + (folder / "step-000002").native();
    // Nothing is left to train: the same weights have the same held-back loss.
    const Trained loaded = train(loads + " --steps 2" + resume);
    EXPECT_EQ(loaded.losses.size(), 0u);
    EXPECT_NEAR(loaded.held_back, first.held_back, 1e-6) << loads;
    expect_close(train(loads + " --steps 4" + resume), from(straight, 2), saves + " to " + loads);
  }
}

// A checkpoint has a tied embedding once, whether its copies are on one rank or on two.
TEST(Resume, TiedEmbeddingsOnAnyOtherMesh) {
  const auto folder = scratch_folder("tied");
  const std::string tied = "--tie --clip 0.5 ";
  const Trained straight = train(tied + "--pp 2 --steps 4");
  const std::vector<std::string> meshes = {
      "--pp 2 --schedule 1F1B", "--pp 2 --schedule ZBV --dp-shard 2", "--pp 1 --schedule GPipe",
      "--pp 2 --tp 2 --schedule Interleaved1F1B"};
  std::set<std::string> sizes;
  for (size_t i = 0; i < meshes.size(); ++i) {
    std::filesystem::remove_all(folder);
    train(tied + meshes[i] + " --steps 2 --save " + folder.native());
    const std::string path = (folder / "step-000002").native();
    const std::string loads = meshes[(i + 1) % meshes.size()];
    expect_close(train(tied + loads + " --steps 4 --resume " + path), from(straight, 2), loads);
    const std::string all = exported(path);
    EXPECT_NE(all.find("\"tokens.weight\""), std::string::npos);
    EXPECT_EQ(all.find("output"), std::string::npos);
    sizes.insert(std::to_string(all.size()));
  }
  EXPECT_EQ(sizes.size(), 1u);
  // An output layer of its own is missing in the file.
  const Output output =
      run_shell(kTrain + "--steps 4 --resume " + (folder / "step-000002").native() + " 2>&1");
  EXPECT_EQ(output.status, 1);
  EXPECT_NE(output.text.find("expected tensor `output.weight` of F32[256, 32], got none"),
            std::string::npos)
      << output.text;
}

// Killed at any moment of training or saving, threads and processes.
TEST(Resume, AfterAKill) {
  const Trained straight = train("--steps 12 --dp-shard 2");
  for (const std::string launch : {"", "cli/pipewright launch -n 4 -- "}) {
    const auto folder = scratch_folder("killed");
    const std::string args =
        "--dp-shard 2 --save " + folder.native() + " --save-every 1 --resume latest --steps ";
    for (const std::string seconds : {"1.2", "1.9"})
      run_shell("timeout -s KILL " + seconds + " " + launch + kTrain + args + "12");
    // The lock is gone when the last of the killed processes is.
    run_shell("flock -w 60 " + folder.native() + "/.lock true");
    const Trained resumed = train(args + "12");
    for (const auto& [step, loss] : resumed.losses) EXPECT_EQ(loss, straight.losses.at(step));
    EXPECT_EQ(resumed.held_back, straight.held_back);
  }
}

// The same continuation on every mesh, of processes too; its first byte is the likeliest one.
TEST(Resume, ContinuesATextOnAnyMesh) {
  const auto folder = scratch_folder("sample");
  train("--pp 2 --schedule ZBV --steps 200 --lr 0.01 --save " + folder.native());
  const std::string model = "examples/train_gpt --layers 4 --dim 32 --context 16 ";
  const std::string prompt = "a pipewright pri";  // as long as the context
  const std::string resume = " --resume " + folder.native() + "/step-000200 2>/dev/null";
  const std::string sample = " --sample '" + prompt + "'" + resume;
  const Output alone = run_shell(model + "--pp 1 --schedule GPipe" + sample);
  EXPECT_EQ(alone.status, 0);
  EXPECT_EQ(alone.text.find(prompt), 0u) << alone.text;
  EXPECT_EQ(alone.text.size(), 16u + 200 + 1);
  for (const std::string mesh : {"--pp 2 --schedule ZBV --dp-shard 2", "--pp 4 --microbatches 2",
                                 "--pp 2 --tp 2 --dp-replicate 2",
                                 "--pp 1 --tp 2 --sequence-parallel", "--pp 2 --schedule search"})
    EXPECT_EQ(run_shell(model + mesh + sample).text, alone.text) << mesh;
  EXPECT_EQ(
      run_shell("cli/pipewright launch -n 4 -- " + model +
                "--pp 2 --schedule DualPipeV --dp-shard 2" + sample + " | sed 's/^\\[0\\] //'")
          .text,
      alone.text);
  // Only the last bytes of a long prompt count, and they do.
  EXPECT_EQ(run_shell(model + "--pp 1 --sample 'xyz" + prompt + "'" + resume).text,
            "xyz" + alone.text);
  EXPECT_NE(run_shell(model + "--pp 1 --sample 'o pipeline stage'" + resume).text.substr(16),
            alone.text.substr(16));
  EXPECT_EQ(run_shell(model + "--sample x 2>&1").text, "error: --sample: expected --resume too\n");
}

TEST(Resume, KeepsItsLearningRate) {
  const auto folder = scratch_folder("lr");
  const std::string save = "--save " + folder.native() + " --save-every 2 ";
  const Trained straight = train("--lr 0.02 --steps 4 " + save);
  const std::string resume = "--steps 4 --resume " + (folder / "step-000002").native();
  EXPECT_EQ(train(resume).losses, from(straight, 2).losses);
  const Trained other = train(resume + " --lr 0.001");
  EXPECT_EQ(other.losses.at(2), straight.losses.at(2));
  EXPECT_NE(other.losses.at(3), straight.losses.at(3));
}

TEST(Resume, SavesEveryFewStepsAndKeepsTwo) {
  const auto folder = scratch_folder("every");
  train("--steps 7 --save-every 2 --save " + folder.native());
  const Output output = run_shell("cli/pipewright checkpoint ls " + folder.native());
  EXPECT_EQ(output.status, 0);
  EXPECT_EQ(output.text.find(folder.native() + "/step-000006: "), 0u) << output.text;
  EXPECT_NE(output.text.find("/step-000007: "), std::string::npos) << output.text;
  const Output one = run_shell("cli/pipewright checkpoint ls " + (folder / "step-000007").native());
  for (const std::string text : {"schedule  1F1B\n", "mesh      pp=2 dp_replicate=1 dp_shard=1\n",
                                 "data_position = 7\n", "seed = 0\n", "block3.qkv.weight "})
    EXPECT_NE(one.text.find(text), std::string::npos) << text << one.text;
}

// A folder in which nothing can be written any more: one error, and the last checkpoint is whole. A
// limit on the size of files stands for a full disk. Root may write everywhere, but for the right
// that is taken from it here.
TEST(Resume, AfterASaveThatFailed) {
  const auto folder = scratch_folder("failed_save");
  const std::string args = "--save " + folder.native() + " --resume latest --steps ";
  const Trained straight = train("--steps 6");
  train(args + "3");
  const auto expect_failure = [&](const std::string& with, const std::string& cause) {
    const Output output = run_shell(with + kTrain + args + "6 2>&1");
    EXPECT_EQ(output.status, 1) << output.text;
    const size_t error = output.text.find("error: ");
    EXPECT_EQ(output.text.find("rank 0: cannot ", error), error + 7) << output.text;
    EXPECT_NE(output.text.find(folder.native() + "/step-000006.tmp", error), std::string::npos)
        << output.text;
    EXPECT_NE(output.text.find("`: " + cause + "\n", error), std::string::npos) << output.text;
    EXPECT_EQ(run_shell("cli/pipewright checkpoint verify " + folder.native()).status, 0);
  };
  expect_failure("trap '' XFSZ; ulimit -f 8; ", "File too large");
  using std::filesystem::perms;
  std::filesystem::permissions(folder, perms::owner_read | perms::owner_exec);
  expect_failure("$(test $(id -u) != 0 || echo setpriv --bounding-set -dac_override) ",
                 "Permission denied");
  std::filesystem::permissions(folder, perms::owner_all);
  const Trained resumed = train(args + "6");
  EXPECT_EQ(resumed.losses, from(straight, 3).losses);
}

// From an export, weights alone.
TEST(Resume, FromWeights) {
  const auto folder = scratch_folder("weights");
  train("--steps 3 --save " + folder.native());
  const std::string file = (folder / "model.safetensors").native();
  ASSERT_EQ(run_shell("cli/pipewright checkpoint export " + folder.native() + " -o " + file).status,
            0);
  const std::string resume = "--steps 2 --resume " + file;
  const Trained loaded = train(resume + " --pp 2");
  expect_close(train(resume + " --pp 1 --dp-shard 2"), loaded, "sharded");
  EXPECT_LT(loaded.losses.at(0), train("--steps 1").losses.at(0));
  const Output output = run_shell(kTrain + resume + " 2>&1");
  EXPECT_EQ(output.text.find("weights from `" + file + "`: starting from step 0\n"), 0u);
}

TEST(Resume, SaysWhereItStarts) {
  const auto folder = scratch_folder("fresh");
  const std::string save = "--steps 1 --save " + folder.native() + " --resume latest";
  const Output fresh = run_shell(kTrain + save + " 2>&1");
  EXPECT_EQ(fresh.status, 0);
  EXPECT_EQ(fresh.text.find("no checkpoint in `" + folder.native() + "`: starting from step 0\n"),
            0u);
  const Output again = run_shell(kTrain + save + " 2>&1");
  EXPECT_EQ(again.text.find("resumed from `" + folder.native() + "/step-000001`\n{\"held_back"), 0u)
      << again.text;
}

TEST(Resume, Errors) {
  const auto folder = scratch_folder("errors");
  train("--steps 1 --save " + folder.native());
  const std::string path = (folder / "step-000001").native();
  const auto expect_error = [](const std::string& args, int status, const std::string& text) {
    const std::string command =
        args.find("--layers") == std::string::npos ? kTrain : "examples/train_gpt --json ";
    const Output output = run_shell(command + args + " 2>&1");
    EXPECT_EQ(output.status, status) << args;
    EXPECT_NE(output.text.find("error: " + text), std::string::npos) << args << output.text;
  };
  expect_error("--resume latest", 2, "--resume latest: expected --save too\n");
  expect_error("--save-every 2", 2, "--save-every: expected --save too\n");
  expect_error("--resume " + path + " --seed 1", 2,
               "--seed: expected 0, as in `" + path + "`, got 1\n");
  expect_error("--layers 3 --dim 32 --context 16 --resume " + path, 1,
               "the checkpoint does not fit the model:\nerror[PW113]: unexpected tensor `block3.");
  expect_error("--resume " + path + "/nowhere", 1, "rank 0: cannot ");
  expect_error("--steps 1 --save /dev/null/here", 1, "rank 0: cannot create `/dev/null/here`: ");
  const Output locked = run_shell("flock " + folder.native() + "/.lock " + kTrain +
                                  "--steps 1 --save " + folder.native() + " 2>&1");
  EXPECT_EQ(locked.status, 1);
  EXPECT_NE(locked.text.find("another job saves there"), std::string::npos) << locked.text;
}

}  // namespace
}  // namespace pipewright::examples
