// Exports: what another export to the same place left behind, or still writes; outputs that would
// change the checkpoint itself.
#include "pipewright/checkpoint/export.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>

#include <map>

#include "pipewright/checkpoint/durable_file.h"
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

// The files of a folder and what is in them.
std::map<fs::path, std::string> contents(const fs::path& folder) {
  std::map<fs::path, std::string> all;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(folder))
    all[entry.path()] = entry.is_regular_file() ? tests::read_file(entry.path()) : "";
  return all;
}

// `out` is a folder without a manifest, where any other safetensors file would be part of it.
class ExportOntoItself : public Export {
 protected:
  ExportOntoItself() {
    run();
    fs::copy_file(out_ / "model.safetensors", single_);
  }
  // Exports to a file, and to a folder if the name is not that of a file.
  std::string error_of(const fs::path& source, const fs::path& target) const {
    CheckpointReport report;
    const auto checkpoint = StoredCheckpoint::open(source, &report);
    const std::vector<std::string> names = {"w"};
    const auto before = contents(folder_);
    std::string error;
    try {
      if (target.extension() == ".safetensors") {
        export_file(*checkpoint, names, target, nullptr);
      } else {
        export_folder(*checkpoint, names, target, 1000, nullptr);
      }
    } catch (const FileError& thrown) {
      error = thrown.what();
    }
    EXPECT_EQ(contents(folder_), before) << target;
    return error;
  }
  static std::string outside(const fs::path& source, const fs::path& target) {
    return "cannot write `" + target.native() +
           "`: expected a path outside the checkpoint that is exported, `" + source.native() + "`";
  }
  void expect_refused(const fs::path& source, const fs::path& target) const {
    EXPECT_EQ(error_of(source, target), outside(source, target));
  }

  const fs::path single_ = folder_ / "single.safetensors";
};

TEST_F(ExportOntoItself, IntoItsFolder) {
  fs::create_directory_symlink(out_, folder_ / "link");
  fs::create_symlink(out_ / "model.safetensors", folder_ / "link.safetensors");
  for (const char* target : {"out", "out/", "out/model.safetensors", "out/new.safetensors",
                             "out/new", "out/missing/../new.safetensors", "link/new.safetensors",
                             "link/../out/new", "link/new", "link.safetensors"}) {
    const fs::path path = folder_ / target;
    EXPECT_EQ(error_of(out_, path), outside(out_, path.has_filename() ? path : path.parent_path()));
  }
  expect_refused(folder_ / "link", out_ / "new.safetensors");
}

TEST_F(ExportOntoItself, OverTheFile) {
  fs::create_symlink(single_, folder_ / "link.safetensors");
  expect_refused(single_, single_);
  expect_refused(single_, folder_ / "link.safetensors");
  expect_refused(folder_ / "link.safetensors", single_);
  expect_refused(single_, folder_ / "out/../single.safetensors");
}

// The folder has links, as Hugging Face's cache does.
TEST_F(ExportOntoItself, OverAFileThatItLinksTo) {
  fs::remove(out_ / "model.safetensors");
  fs::create_symlink(single_, out_ / "model.safetensors");
  expect_refused(out_, single_);
}

TEST_F(ExportOntoItself, OverItsNameWithTmp) {
  const fs::path source = folder_ / "new.tmp";
  fs::rename(out_, source);
  EXPECT_EQ(error_of(source, folder_ / "new"), outside(source, source));
}

TEST_F(ExportOntoItself, BesideIt) {
  CheckpointReport report;
  const std::vector<std::string> names = {"w"};
  export_folder(*StoredCheckpoint::open(out_, &report), names, folder_ / "out2", 1000, nullptr);
  export_file(*StoredCheckpoint::open(single_, &report), names, folder_ / "other.safetensors",
              nullptr);
  EXPECT_EQ(tests::read_file(folder_ / "other.safetensors"), tests::read_file(single_));
  EXPECT_EQ(tests::read_file(folder_ / "out2/model.safetensors"), tests::read_file(single_));
}

}  // namespace
}  // namespace pipewright::checkpoint
