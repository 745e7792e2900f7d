// Runs the test bodies of one folder on GPUs, without those that are about the CPU.
#include <gtest/gtest.h>

#include <string>

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  std::string& filter = testing::GTEST_FLAG(filter);
  if (filter.find('-') == std::string::npos) filter += "-" PIPEWRIGHT_CPU_ONLY;
  return RUN_ALL_TESTS();
}
