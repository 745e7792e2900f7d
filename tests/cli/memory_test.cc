// 10^8 actions are read and printed within 4 GiB of address space, and the output equals the input
// byte for byte.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

namespace {

// A lowered program of 100 ranks: 100 actions per microbatch and rank, 10,000 microbatches.
void write_program(const std::string& path) {
  std::ofstream out(path, std::ios::binary);
  for (int rank = 0; rank < 100; ++rank) {
    std::string row;
    for (int microbatch = 0; microbatch < 10000; ++microbatch) {
      for (int repeat = 0; repeat < 25; ++repeat) {
        for (const char* token : {"RECV_F", "F", "B", "SEND_B"}) {
          if (!row.empty()) row += ',';
          row += std::to_string(rank) + token + std::to_string(microbatch);
        }
      }
    }
    out << row << "\r\n";
  }
}

bool same(const std::string& left, const std::string& right) {
  return std::system(("cmp '" + left + "' '" + right + "'").c_str()) == 0;
}

TEST(MemoryTest, AHundredMillionActionsInFourGigabytes) {
  const std::string folder = std::getenv("TEST_TMPDIR");
  const std::string in = folder + "/in.csv", out = folder + "/out.csv";
  write_program(in);
  const pid_t child = fork();
  if (child == 0) {
    const rlimit limit{4ull << 30, 4ull << 30};
    setrlimit(RLIMIT_AS, &limit);
    execl("cli/pipewright", "pipewright", "print", in.c_str(), "--format", "csv", "-o", out.c_str(),
          nullptr);
    _exit(127);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_EQ(status, 0);
  EXPECT_TRUE(same(in, out));
  std::filesystem::remove(in);
  std::filesystem::remove(out);
}

}  // namespace
