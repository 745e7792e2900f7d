#include "examples/event_file.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/checkpoint/scratch.h"

namespace pipewright::examples {
namespace {

namespace fs = std::filesystem;

std::vector<fs::path> files_of(const fs::path& folder) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(folder)) files.push_back(entry.path());
  return files;
}

std::string hex_of(const std::string& bytes) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (const unsigned char byte : bytes) text += {kDigits[byte / 16], kDigits[byte % 16]};
  return text;
}

// What TensorBoard 2.20's RecordWriter wrote of the same events, serialized by protobuf.
TEST(EventFile, EqualsTensorBoards) {
  const fs::path folder = tests::scratch_folder("events");
  const double time = 1732500000.25;
  EventFile file(folder / "runs/1", 300, time);
  file.write(300, time + 1.5, {{"loss", 2.75}, {"lr", 0.003}});
  file.write(int64_t{1} << 40, time + 2, {{std::string(200, 'x'), -1e30}});

  const std::vector<fs::path> files = files_of(folder / "runs/1");
  ASSERT_EQ(files.size(), 1);
  EXPECT_TRUE(files[0].filename().native().starts_with("events.out.tfevents.1732500000."));
  EXPECT_EQ(hex_of(tests::read_file(files[0])),
            "1800000000000000a37f4b220900001088f6d0d9411a0d627261696e2e4576656e743a326eae6493"
            "100000000000000095fbfe180900001088f6d0d94110ac023a020801da95f906"
            "2600000000000000734fe3000900007088f6d0d94110ac022a180a0b0a046c6f73731500003040"
            "0a090a026c7215a69b443b86911eee"
            "e60000000000000071234f870900009088f6d0d941108080808080202ad3010ad0010ac801" +
                hex_of(std::string(200, 'x')) + "15caf249f12dcd9b41");
}

TEST(EventFile, CannotBeWritten) {
  const fs::path folder = tests::scratch_folder("events");
  tests::write_file(folder / "file", "text");
  try {
    EventFile(folder / "file", 0, 1.0);
    FAIL() << "wrote into a file as if it were a folder";
  } catch (const std::runtime_error& error) {
    EXPECT_TRUE(
        std::string(error.what())
            .starts_with("cannot write `" + (folder / "file/events.out.tfevents.1.").native()))
        << error.what();
  }
}

}  // namespace
}  // namespace pipewright::examples
