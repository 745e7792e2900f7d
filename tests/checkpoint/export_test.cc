// Exports: what another export to the same place left behind, or still writes.
#include "pipewright/checkpoint/export.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>

#include "pipewright/checkpoint/descriptor.h"
#include "pipewright/checkpoint/file_error.h"
#include "pipewright/checkpoint/save.h"
#include "tests/checkpoint/scratch.h"

namespace pipewright::checkpoint {
namespace {

namespace fs = std::filesystem;
using tests::scratch_folder;
using tests::write_file;

std::vector<std::string> alone(const std::string& mine) { return {mine}; }

class Export : public testing::Test {
 protected:
  Export() {
    const std::vector<float> values = {1, 2, 3};
    Snapshot snapshot;
    snapshot.parts = {{"w", DType::kF32, {3}, {{0}, {3}}, std::as_bytes(std::span(values)), ""}};
    CheckpointReport report;
    source_ =
        StoredCheckpoint::open(Saver({.folder = folder_ / "ckpt"}, alone).save(snapshot), &report);
  }
  void run() const { export_folder(*source_, std::vector<std::string>{"w"}, out_, 1000, nullptr); }

  const fs::path folder_ = scratch_folder("export"), out_ = folder_ / "out";
  std::optional<StoredCheckpoint> source_;
};

TEST_F(Export, ReplacesWhatAKilledOneLeft) {
  fs::create_directory(folder_ / "out.tmp");
  write_file(folder_ / "out.tmp" / "model-00001-of-00002.safetensors.tmp", "half");
  run();
  EXPECT_FALSE(fs::exists(folder_ / "out.tmp"));
  EXPECT_FALSE(fs::exists(out_ / "model-00001-of-00002.safetensors.tmp"));
  EXPECT_TRUE(fs::exists(out_ / "model.safetensors"));
}

TEST_F(Export, LeavesAnotherOneAlone) {
  const fs::path temporary = folder_ / "out.tmp";
  fs::create_directory(temporary);
  write_file(temporary / "model.safetensors.tmp", "half");
  const Descriptor other(::open(temporary.c_str(), O_RDONLY | O_DIRECTORY));
  ASSERT_EQ(::flock(other.get(), LOCK_EX), 0);
  try {
    run();
    FAIL() << "expected an error";
  } catch (const FileError& error) {
    EXPECT_EQ(std::string(error.what()),
              "cannot write `" + out_.native() + "`: another export writes there");
  }
  EXPECT_TRUE(fs::exists(temporary / "model.safetensors.tmp"));
  EXPECT_FALSE(fs::exists(out_));
}

// A file that is called as the temporary folder is not of an export.
TEST_F(Export, KeepsAFileInItsWay) {
  write_file(folder_ / "out.tmp", "mine");
  EXPECT_THROW(run(), FileError);
  EXPECT_EQ(tests::read_file(folder_ / "out.tmp"), "mine");
}

}  // namespace
}  // namespace pipewright::checkpoint
