#ifndef PIPEWRIGHT_TESTS_EXAMPLES_TRAINING_H_
#define PIPEWRIGHT_TESTS_EXAMPLES_TRAINING_H_

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "tests/support/shell/shell.h"

// Runs train_gpt as a user does, for its tests.

namespace pipewright::examples {

// A document of the repository is the training data, so that a test needs no other file.
inline const std::string kTrain =
    "examples/train_gpt --data docs/command_line.md --layers 3 --dim 32 --context 32 ";

struct Trained {
  std::vector<double> losses;
  double held_back = 0, bigram = 0;
};

// Runs a command with --json, which must succeed.
inline Trained train(const std::string& command) {
  const tests::Output output = tests::run_shell(command + " --json");
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

// Losses are equal within what another order of sums makes of them.
inline void expect_close(const Trained& left, const Trained& right, const std::string& what) {
  ASSERT_FALSE(left.losses.empty()) << what;
  ASSERT_EQ(left.losses.size(), right.losses.size()) << what;
  for (size_t step = 0; step < left.losses.size(); ++step)
    EXPECT_NEAR(left.losses[step], right.losses[step], 1e-5) << what << ", step " << step;
  EXPECT_NEAR(left.held_back, right.held_back, 1e-5) << what;
  EXPECT_NEAR(left.bigram, right.bigram, 1e-9) << what;
}

}  // namespace pipewright::examples

#endif  // PIPEWRIGHT_TESTS_EXAMPLES_TRAINING_H_
