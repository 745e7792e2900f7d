// The loop of train_gpt on the simulated device: the CPU's losses, and no step in which the host
// waits for the device, but for the figures of the step before.
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/shell/shell.h"

namespace pipewright {
namespace {

using tests::run_shell;

struct Training {
  std::vector<double> losses;
  std::map<std::string, int> waits;  // by name: their number
  std::string races;
};

Training train(const std::string& program, int steps, const std::string& flags) {
  const std::string errors = testing::TempDir() + "/stderr";
  const tests::Output output =
      run_shell(program +
                " --data docs/command_line.md --json --layers 2 --dim 32 --context 16 --batch 8 "
                "--microbatches 2 --pp 2 --clip 1 --steps " +
                std::to_string(steps) + " " + flags + " 2> " + errors);
  EXPECT_EQ(output.status, 0) << output.text;
  Training training;
  std::istringstream lines(output.text);
  for (std::string line; std::getline(lines, line);) {
    const auto figures = nlohmann::json::parse(line);
    if (figures.contains("loss")) training.losses.push_back(figures["loss"].get<double>());
  }
  std::ifstream file(errors);
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("race: ")) training.races += line + "\n";
    if (!line.starts_with("waits: ")) continue;
    const size_t number = line.rfind(' ');
    training.waits[line.substr(7, number - 7)] = std::stoi(line.substr(number));
  }
  return training;
}

// In ten steps more, each rank may wait ten times more for figures, and not once for anything else.
TEST(TrainGptOnDevice, NoStepMakesTheHostWait) {
  const std::string device = "tests/device/train_gpt_on_device --device cuda";
  for (const auto& [flags, ranks] :
       {std::pair("--schedule 1F1B", 2), std::pair("--schedule ZBV --dp-shard 2", 4)}) {
    Training few = train(device, 3, flags), many = train(device, 13, flags);
    EXPECT_LE(many.waits["synchronizeEvent"] - few.waits["synchronizeEvent"], 10 * ranks) << flags;
    few.waits.erase("synchronizeEvent");
    many.waits.erase("synchronizeEvent");
    EXPECT_FALSE(few.waits.empty()) << flags;
    EXPECT_EQ(many.waits, few.waits) << flags;
    EXPECT_EQ(many.races, "") << flags;
    const Training cpu = train("examples/train_gpt", 13, flags);
    ASSERT_EQ(many.losses.size(), 13U) << flags;
    ASSERT_EQ(cpu.losses.size(), 13U) << flags;
    for (size_t i = 0; i < cpu.losses.size(); ++i) EXPECT_NEAR(many.losses[i], cpu.losses[i], 1e-4);
  }
}

}  // namespace
}  // namespace pipewright
