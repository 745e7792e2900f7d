// The file that torchrun reads; //tests/peer:torchrun_peer_test reads one with PyTorch.
#include "pipewright/comms/process/error_file.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

namespace pipewright::comms {
namespace {

Variables only(const std::map<std::string, std::string>& set) {
  return [set](const std::string& name) -> std::optional<std::string> {
    const auto found = set.find(name);
    return found == set.end() ? std::nullopt : std::optional(found->second);
  };
}

// Not std::time(), whose clock is coarser and may lag behind.
int64_t seconds_now() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::seconds>(now).count();
}

TEST(ErrorFile, HasTheMessageAndTheTime) {
  const std::string path = testing::TempDir() + "/error.json";
  const int64_t before = seconds_now();
  write_error_file("rank 1, step 2: `1F0`:\n\xff \"quoted\"",
                   only({{"TORCHELASTIC_ERROR_FILE", path}}));
  const nlohmann::json report = nlohmann::json::parse(std::ifstream(path));
  EXPECT_EQ(report["message"]["message"], "rank 1, step 2: `1F0`:\n\xef\xbf\xbd \"quoted\"");
  const std::string timestamp = report["message"]["extraInfo"]["timestamp"];
  EXPECT_GE(std::stoll(timestamp), before);
  EXPECT_LE(std::stoll(timestamp), seconds_now());
}

TEST(ErrorFile, IsNotWrittenUnlessItIsAskedForAndCan) {
  const std::filesystem::path folder = testing::TempDir() + "/error_file";
  std::filesystem::create_directory(folder);
  std::filesystem::current_path(folder);
  write_error_file("message", only({}));
  write_error_file("message", only({{"TORCHELASTIC_ERROR_FILE", ""}}));
  write_error_file("message", only({{"TORCHELASTIC_ERROR_FILE", folder / "missing" / "file"}}));
  EXPECT_TRUE(std::filesystem::is_empty(folder));
}

}  // namespace
}  // namespace pipewright::comms
