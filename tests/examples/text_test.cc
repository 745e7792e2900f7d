#include "examples/text.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <fstream>
#include <stdexcept>

namespace pipewright::examples {
namespace {

std::string file_with(const std::string& bytes) {
  const std::string path = std::string(std::getenv("TEST_TMPDIR")) + "/text";
  std::ofstream(path, std::ios::binary) << bytes;
  return path;
}

TEST(Text, WindowsAndTheirTargets) {
  std::string bytes(100, 'a');
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(i);
  const Text text(file_with(bytes), 4);
  const auto [input, target] = text.window(10);
  EXPECT_EQ(input, (std::vector<int64_t>{10, 11, 12, 13}));
  EXPECT_EQ(target, (std::vector<int64_t>{11, 12, 13, 14}));
  // The last ten bytes are held back.
  for (int64_t step = 0; step < 200; ++step) {
    for (const int64_t start : text.batch(1, step, 4)) {
      EXPECT_GE(start, 0);
      EXPECT_LT(start + 4, 90);
    }
  }
  EXPECT_EQ(text.batch(1, 7, 4), text.batch(1, 7, 4));
  EXPECT_NE(text.batch(1, 7, 4), text.batch(1, 8, 4));
  EXPECT_NE(text.batch(1, 7, 4), text.batch(2, 7, 4));
  EXPECT_EQ(text.held_back(3, 0, 2), (std::vector<int64_t>{90, 91, 92}));
  EXPECT_EQ(text.held_back(3, 1, 2), (std::vector<int64_t>{93, 94, 95}));
}

// "ab" repeated, and pairs at the end that the training part does not have.
TEST(Text, BigramLossByHand) {
  std::string bytes;
  for (int i = 0; i < 45; ++i) bytes += "ab";
  bytes += "ababababzz";
  const Text text(file_with(bytes), 4);
  // The training part has ab 45 times and ba 44 times; the held-back part has ab 4 times, ba 3
  // times, then bz and zz.
  const double seen_a = std::log((45 + 0.1) / (45 + 25.6));
  const double seen_b = std::log((44 + 0.1) / (44 + 25.6));
  const double b_to_z = std::log(0.1 / (44 + 25.6)), z_to_z = std::log(0.1 / 25.6);
  EXPECT_NEAR(text.bigram_loss(), -(4 * seen_a + 3 * seen_b + b_to_z + z_to_z) / 9, 1e-12);
}

TEST(Text, Errors) {
  EXPECT_THROW(Text("/nowhere/at/all", 4), std::runtime_error);
  EXPECT_THROW(Text("/tmp", 4), std::runtime_error);
  try {
    Text(file_with(std::string(49, 'x')), 4);
    FAIL();
  } catch (const std::runtime_error& error) {
    EXPECT_NE(
        std::string(error.what()).find("`: expected at least 50 bytes, got 49: its last tenth"),
        std::string::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace pipewright::examples
