// Folders that PyTorch's and Hugging Face's tools write: what is missing from them is found where
// anything says how much there should be, and it is said where nothing does.
#include <gtest/gtest.h>

#include <cstddef>
#include <filesystem>
#include <string>
#include <vector>

#include "pipewright/checkpoint/durable_file.h"
#include "pipewright/checkpoint/export.h"
#include "pipewright/checkpoint/safetensors_file.h"
#include "pipewright/checkpoint/stored_checkpoint.h"
#include "tests/checkpoint/scratch.h"

namespace pipewright::checkpoint {
namespace {

namespace fs = std::filesystem;
using tests::scratch_folder;
using tests::write_file;
using Texts = std::vector<std::string>;

// A file with tensors of bytes whose values are `value`, and DCP_SHARDING_INFO if it is not empty.
void write_tensors(const fs::path& path, const std::vector<TensorSpec>& tensors,
                   const std::string& info = "", std::byte value = std::byte{1}) {
  Metadata metadata = {{"format", "pt"}};
  if (!info.empty()) metadata["DCP_SHARDING_INFO"] = info;
  SafetensorsWriter writer(path, lay_out_safetensors(tensors, metadata));
  for (const StoredTensor& tensor : writer.header().tensors)
    writer.write(std::vector<std::byte>(tensor.end - tensor.begin, value));
  writer.commit();
}
TensorSpec bytes(const std::string& name, const std::vector<int64_t>& shape) {
  return {name, DType::kU8, shape};
}

struct Opened {
  std::optional<StoredCheckpoint> checkpoint;
  Texts errors, notes;
};
Opened open(const fs::path& path, Gaps gaps = Gaps::kErrors) {
  CheckpointReport report;
  Opened opened{StoredCheckpoint::open(path, &report, gaps), {}, {}};
  EXPECT_EQ(opened.checkpoint.has_value(), report.ok());
  for (const FileReport& file : report.files) {
    for (const ir::Diagnostic& error : file.diagnostics.kept())
      opened.errors.push_back(ir::code(error.rule) + " " + error.message);
  }
  for (const CheckpointNote& note : report.notes) opened.notes.push_back(note.text);
  return opened;
}

// Two ranks with two rows each of `w`, as HuggingFaceStorageWriter(save_distributed=True) writes
// them; `shape` is what they say of the whole.
constexpr const char* kFirst = "shard-00001-model-00001-of-00001.safetensors";
constexpr const char* kSecond = "shard-00002-model-00001-of-00001.safetensors";
fs::path two_ranks(const std::string& first_shape, const std::string& second_shape) {
  const fs::path folder = scratch_folder("two_ranks");
  write_tensors(folder / kFirst, {bytes("w", {2, 3})},
                R"({"w": {"saved_offsets": [0, 0])" + first_shape + "}}");
  write_tensors(folder / kSecond, {bytes("w", {2, 3})},
                R"({"w": {"saved_offsets": [2, 0])" + second_shape + "}}");
  return folder;
}
constexpr const char* kGlobal = R"(, "global_shape": [4, 3])";

TEST(ShardedTest, TheWholeIsWhatAnyFileSays) {
  for (const auto& [first, second] :
       {std::pair(kGlobal, kGlobal), std::pair(kGlobal, ""), std::pair("", kGlobal)}) {
    const Opened both = open(two_ranks(first, second));
    EXPECT_EQ(both.errors, Texts{});
    EXPECT_EQ(both.checkpoint->unknown().sizes, Texts{});
    // A rank may have tensors of its own, of which no other file speaks.
    EXPECT_TRUE(both.checkpoint->unknown().tensors);
  }
  const fs::path folder = two_ranks(kGlobal, kGlobal);
  fs::remove(folder / kSecond);
  EXPECT_EQ(open(folder).errors,
            Texts{"PW112 tensor `w` of U8[4, 3]: no file has elements [2:4, 0:3]"});
  // One of several files can be looked at.
  EXPECT_EQ(open(folder / kFirst).errors.size(), 1u);
  EXPECT_EQ(open(folder / kFirst, Gaps::kAllowed).checkpoint->tensors().at("w").shape,
            (std::vector<int64_t>{4, 3}));
}

TEST(ShardedTest, WithoutTheWholeItIsNotKnown) {
  const fs::path folder = two_ranks("", "");
  for (int files = 2; files > 0; --files) {
    const Opened opened = open(folder);
    EXPECT_EQ(opened.errors, Texts{});
    EXPECT_EQ(opened.checkpoint->unknown().sizes, Texts{"w"});
    EXPECT_TRUE(opened.checkpoint->unknown().tensors);
    fs::remove(folder / kSecond);
  }
  EXPECT_EQ(open(folder / kFirst).checkpoint->unknown().sizes, Texts{"w"});
  // A scalar is whole.
  write_tensors(folder / kFirst, {bytes("s", {})}, R"({"s": {"saved_offsets": []}})");
  EXPECT_EQ(open(folder).checkpoint->unknown().sizes, Texts{});
}

TEST(ShardedTest, ShapesOfTheWholeThatDoNotFit) {
  EXPECT_EQ(open(two_ranks(kGlobal, R"(, "global_shape": [5, 3])")).errors,
            Texts{std::string("PW113 tensor `w`: expected a part of U8[4, 3], as in ") + kFirst +
                  ", got one of U8[5, 3]"});
  EXPECT_EQ(open(two_ranks(R"(, "global_shape": [3, 3])", "")).errors,
            Texts{std::string("PW113 tensor `w`: expected parts of U8[3, 3], as in ") + kFirst +
                  ", got parts up to U8[4, 3]"});
  EXPECT_EQ(open(two_ranks("", R"(, "global_shape": [3, 3])")).errors,
            Texts{"PW104 DCP_SHARDING_INFO of tensor `w`: dimension 0: expected 2 elements from 2 "
                  "on to be within 3"});
  for (const char* shape : {"[4]", "[4, 3, 1]", "[4, -3]", "[4, 3.5]", "\"4, 3\"", "null",
                            "[4, 18446744073709551615]"}) {
    EXPECT_EQ(open(two_ranks(std::string(", \"global_shape\": ") + shape, "")).errors,
              Texts{"PW104 DCP_SHARDING_INFO of tensor `w`: expected {\"global_shape\": [...]} "
                    "with 2 numbers"})
        << shape;
  }
  // More elements than any memory has.
  EXPECT_EQ(open(two_ranks(R"(, "global_shape": [9223372036854775807, 3])", "")).errors.size(), 1u);
}

// Several parts of one tensor in one file, which then have other names there.
TEST(ShardedTest, NamesInTheModel) {
  const fs::path folder = scratch_folder("names");
  const auto write = [&](const std::string& offset_of_second) {
    write_tensors(
        folder / kFirst, {bytes("w.__dcp_shard_0", {1, 3}), bytes("w.__dcp_shard_1", {1, 3})},
        R"({"w.__dcp_shard_0": {"logical_fqn": "w", "saved_offsets": [0, 0], "global_shape": [2, 3]},
            "w.__dcp_shard_1": {"logical_fqn": "w", "saved_offsets": )" +
            offset_of_second + R"(, "global_shape": [2, 3]}})");
    return open(folder);
  };
  const Opened opened = write("[1, 0]");
  EXPECT_EQ(opened.errors, Texts{});
  ASSERT_EQ(opened.checkpoint->tensors().size(), 1u);
  EXPECT_EQ(opened.checkpoint->tensors().at("w").boxes.size(), 2u);
  EXPECT_EQ(write("[0, 0]").errors,
            (Texts{"PW112 tensor `w` of U8[2, 3]: no file has elements [1:2, 0:3]",
                   std::string("PW112 tensor `w` of U8[2, 3]: two parts have elements [0:1, 0:3], "
                               "both in ") +
                       kFirst}));
  for (const char* name : {"\"\"", "1", "null"}) {
    write_tensors(folder / kFirst, {bytes("w", {1})},
                  std::string(R"({"w": {"saved_offsets": [0], "logical_fqn": )") + name + "}}");
    EXPECT_EQ(open(folder).errors,
              Texts{std::string("PW104 DCP_SHARDING_INFO of tensor `w`: expected "
                                "{\"logical_fqn\": \"...\"}, got `") +
                    name + "`"});
  }
}

TEST(PlainTest, NumberedNamesSayHowManyFilesThereAre) {
  const fs::path folder = scratch_folder("numbered");
  for (const int file : {1, 2, 3})
    write_tensors(folder / ("model-0000" + std::to_string(file) + "-of-00003.safetensors"),
                  {bytes("w" + std::to_string(file), {2})});
  const Opened whole = open(folder);
  EXPECT_EQ(whole.errors, Texts{});
  EXPECT_FALSE(whole.checkpoint->unknown().tensors);
  fs::remove(folder / "model-00003-of-00003.safetensors");
  fs::remove(folder / "model-00001-of-00003.safetensors");
  EXPECT_EQ(open(folder).errors,
            (Texts{"PW111 expected file `model-00001-of-00003.safetensors`, got none",
                   "PW111 expected file `model-00003-of-00003.safetensors`, got none"}));
  // One of them, or names that say nothing.
  EXPECT_FALSE(open(folder / "model-00002-of-00003.safetensors").checkpoint->unknown().tensors);
  for (const char* name : {"weights.safetensors", "model-00002-of-00001.safetensors",
                           "model-2-of-3.safetensors", "model-    2-of-    3.safetensors"}) {
    const fs::path other = scratch_folder("unnumbered");
    write_tensors(other / name, {bytes("w", {2})});
    EXPECT_TRUE(open(other).checkpoint->unknown().tensors) << name;
  }
}

// A model of Hugging Face: one file, or an index of two. Beside it is another's, with tensors of
// the same and of other names.
class HuggingFace : public testing::TestWithParam<bool> {
 protected:
  HuggingFace() {
    if (GetParam()) {
      write_tensors(folder_ / "model-00001-of-00002.safetensors", {bytes("a", {2})});
      write_tensors(folder_ / "model-00002-of-00002.safetensors", {bytes("b", {3})});
      write_index(5);
    } else {
      write_tensors(folder_ / "model.safetensors", {bytes("a", {2}), bytes("b", {3})});
    }
    write_tensors(folder_ / "consolidated.safetensors", {bytes("a", {2}), bytes("tok.a", {7})}, "",
                  std::byte{9});
    write_file(folder_ / "adapter.safetensors", "not a safetensors file");
  }
  void write_index(uint64_t total_size) const {
    write_file(folder_ / "model.safetensors.index.json",
               R"({"metadata": {"total_size": )" + std::to_string(total_size) +
                   R"(}, "weight_map": {"a": "model-00001-of-00002.safetensors",
                                        "b": "model-00002-of-00002.safetensors"}})");
  }

  const fs::path folder_ = scratch_folder("hugging_face");
};
INSTANTIATE_TEST_SUITE_P(Folders, HuggingFace, testing::Bool(),
                         [](const auto& of) { return of.param ? "Index" : "OneFile"; });

TEST_P(HuggingFace, OtherFilesAreNotRead) {
  const Opened opened = open(folder_);
  EXPECT_EQ(opened.errors, Texts{});
  const std::string why = GetParam() ? "model.safetensors.index.json does not list it"
                                     : "model.safetensors is the whole model";
  EXPECT_EQ(opened.notes, (Texts{"file `adapter.safetensors` is not read: " + why,
                                 "file `consolidated.safetensors` is not read: " + why}));
  ASSERT_EQ(opened.checkpoint->tensors().size(), 2u);
  EXPECT_EQ(opened.checkpoint->unknown().sizes, Texts{});
  EXPECT_FALSE(opened.checkpoint->unknown().tensors);
  // Their data are not exported, and an export does not replace them.
  const Texts names = {"a", "b"};
  const fs::path out = scratch_folder("hugging_face_out") / "all.safetensors";
  export_file(*opened.checkpoint, names, out, nullptr);
  EXPECT_EQ(tests::read_file(out).substr(fs::file_size(out) - 5), std::string(5, '\1'));
  EXPECT_THROW(
      export_file(*opened.checkpoint, names, folder_ / "consolidated.safetensors", nullptr),
      FileError);
}

TEST_P(HuggingFace, WhatTheIndexListsIsExpected) {
  if (!GetParam()) return;
  fs::remove(folder_ / "model-00002-of-00002.safetensors");
  EXPECT_EQ(open(folder_).errors,
            Texts{"PW111 expected file `model-00002-of-00002.safetensors`, got none"});
}

// The index's number of bytes is often wrong, but where parts may be missing it says so.
TEST_P(HuggingFace, TotalSize) {
  if (!GetParam()) return;
  write_index(4);
  EXPECT_EQ(open(folder_).notes.size(), 2u);
  write_index(6);
  const std::string text =
      "expected 6 bytes of tensors, the total_size of model.safetensors.index.json, got 5";
  EXPECT_EQ(open(folder_).errors, Texts{});
  EXPECT_EQ(open(folder_).notes.back(), text);
  write_tensors(folder_ / "model-00002-of-00002.safetensors", {bytes("b", {3})},
                R"({"b": {"saved_offsets": [0]}})");
  EXPECT_EQ(open(folder_).errors, Texts{"PW112 " + text + ": parts are missing at the end of `b`"});
  write_index(5);
  EXPECT_EQ(open(folder_).errors, Texts{});
  EXPECT_EQ(open(folder_).checkpoint->unknown().sizes, Texts{});
}

}  // namespace
}  // namespace pipewright::checkpoint
