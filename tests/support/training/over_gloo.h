#ifndef PIPEWRIGHT_TESTS_SUPPORT_TRAINING_OVER_GLOO_H_
#define PIPEWRIGHT_TESTS_SUPPORT_TRAINING_OVER_GLOO_H_

#include <gtest/gtest.h>

#include <string>

#include "tests/support/shell/shell.h"

// Runs tests that use on_ranks again, over Gloo with ranks as processes.

namespace pipewright::tests {

inline Output launch_tests(int ranks, const std::string& binary, const std::string& filter) {
  return run_shell("cli/pipewright launch -n " + std::to_string(ranks) + " -- " + binary +
                   " --gtest_filter='" + filter + "' 2>&1");
}

// Expects success, and that each rank took part in `runs` calls of on_ranks.
inline void expect_over_gloo(int ranks, const std::string& binary, const std::string& filter,
                             int runs) {
  const Output output = launch_tests(ranks, binary, filter);
  EXPECT_EQ(output.status, 0) << output.text;
  EXPECT_EQ(count(output.text, "over Gloo: "), ranks * runs) << output.text;
}

}  // namespace pipewright::tests

#endif  // PIPEWRIGHT_TESTS_SUPPORT_TRAINING_OVER_GLOO_H_
