// What a disk, a copy or a person can do to a checkpoint: one clear error each, and the checkpoint
// before is found.
#include <gtest/gtest.h>

#include <map>
#include <stdexcept>

#include "pipewright/checkpoint/durable_file.h"
#include "pipewright/checkpoint/folder.h"
#include "pipewright/checkpoint/manifest.h"
#include "pipewright/checkpoint/safetensors_file.h"
#include "pipewright/checkpoint/save.h"
#include "tests/checkpoint/scratch.h"

namespace pipewright::checkpoint {
namespace {

namespace fs = std::filesystem;
using tests::read_file;
using tests::scratch_folder;
using tests::write_file;

constexpr const char* kShard = "shard-00001-model-00001-of-00001.safetensors";
constexpr const char* kSecond = "shard-00001-model-00002-of-00002.safetensors";

// Saves one tensor, in two parts if `parts` is 2; the values are all `value`.
fs::path save_step(const fs::path& folder, int64_t step, float value, int parts = 1) {
  const std::vector<float> data(8, value);
  Snapshot snapshot;
  snapshot.step = step;
  const int64_t rows = 4 / parts;
  for (int64_t part = 0; part < parts; ++part)
    snapshot.parts.push_back({"w",
                              DType::kF32,
                              {4, 2},
                              {{part * rows, 0}, {rows, 2}},
                              std::as_bytes(std::span(data)).first(static_cast<size_t>(rows) * 8),
                              ""});
  Saver saver({folder, 0}, [](const std::string& mine) { return std::vector{mine}; });
  return saver.save(snapshot);
}

// "PW111 expected ...", for each error.
std::vector<std::string> errors_in(const CheckpointReport& report) {
  std::vector<std::string> errors;
  for (const FileReport& file : report.files) {
    for (const ir::Diagnostic& error : file.diagnostics.kept())
      errors.push_back(ir::code(error.rule) + " " + error.message);
  }
  return errors;
}

std::vector<std::string> open_and_verify(const fs::path& path) {
  CheckpointReport report;
  const auto checkpoint = StoredCheckpoint::open(path, &report);
  EXPECT_EQ(checkpoint.has_value(), report.ok());
  if (checkpoint) checkpoint->verify(&report, nullptr);
  return errors_in(report);
}

using Errors = std::vector<std::string>;

// Damages step 200 of a folder that also has step 100. Returns the errors of step 200.
Errors damage(const std::function<void(const fs::path& damaged, const fs::path& other)>& how) {
  const fs::path folder = scratch_folder("damage");
  const fs::path before = save_step(folder, 100, 1), last = save_step(folder, 200, 2);
  how(last, before);
  const Errors errors = open_and_verify(last);
  // All but a flipped bit are found without reading the data, and the one before is taken instead.
  CheckpointReport report;
  const auto latest = open_latest(folder, &report);
  if (!latest) {
    ADD_FAILURE() << "no checkpoint";
    return errors;
  }
  EXPECT_EQ(latest->path, report.ok() ? last : before);
  EXPECT_EQ(errors_in(report), report.ok() ? Errors{} : errors);
  return errors;
}

TEST(DamageTest, EachHasOneError) {
  EXPECT_EQ(damage([](const fs::path&, const fs::path&) {}), Errors{});
  EXPECT_EQ(damage([](const fs::path& path, const fs::path&) { fs::remove(path / kShard); }),
            Errors{"PW111 expected file `shard-00001-model-00001-of-00001.safetensors`, got none"});
  EXPECT_EQ(damage([](const fs::path& path, const fs::path&) {
              fs::resize_file(path / kShard, fs::file_size(path / kShard) - 5);
            }).size(),
            1u);
  EXPECT_EQ(damage([](const fs::path& path, const fs::path& other) {
              fs::copy(other / kShard, path / kShard, fs::copy_options::overwrite_existing);
            }).size(),
            1u);
  EXPECT_EQ(damage([](const fs::path& path, const fs::path&) {
              write_file(path / "model.safetensors", "");
            }).size(),
            1u);
  EXPECT_EQ(damage([](const fs::path& path, const fs::path&) {
              fs::resize_file(path / kManifestName, 300);
            }),
            Errors{"PW110 expected a JSON object: the manifest is damaged or was cut off"});
}

TEST(DamageTest, EveryFlippedBitIsFound) {
  const fs::path folder = scratch_folder("bits");
  const fs::path path = save_step(folder, 1, 1.0F);
  for (const char* name : {kShard, kManifestName}) {
    const std::string whole = read_file(path / name);
    for (size_t at = 0; at < whole.size(); ++at) {
      std::string flipped = whole;
      flipped[at] = static_cast<char>(flipped[at] ^ (1 << at % 8));
      write_file(path / name, flipped);
      const Errors errors = open_and_verify(path);
      EXPECT_FALSE(errors.empty()) << name << " byte " << at;
    }
    write_file(path / name, whole);
  }
  EXPECT_EQ(open_and_verify(path), Errors{});
}

TEST(DamageTest, AFlippedBitOfTheDataIsOneError) {
  const Errors errors = damage([](const fs::path& path, const fs::path&) {
    std::string bytes = read_file(path / kShard);
    bytes.back() = static_cast<char>(bytes.back() ^ 1);
    write_file(path / kShard, bytes);
  });
  ASSERT_EQ(errors.size(), 1u);
  EXPECT_EQ(errors[0].find("PW111 the data are damaged: expected CRC-32 "), 0u) << errors[0];
}

TEST(DamageTest, SwappedShardsAreFound) {
  const fs::path folder = scratch_folder("swapped");
  const fs::path path = save_step(folder, 1, 1.0F, 2);
  const std::string first = "shard-00001-model-00001-of-00002.safetensors";
  fs::rename(path / first, path / "x");
  fs::rename(path / kSecond, path / first);
  fs::rename(path / "x", path / kSecond);
  // Each shard says which boxes it has, so they would even be loaded rightly; but not verified.
  EXPECT_EQ(open_and_verify(path).size(), 2u);
}

TEST(DamageTest, AFolderThatWasNeverFinishedIsNoCheckpoint) {
  const fs::path folder = scratch_folder("unfinished");
  const fs::path path = save_step(folder, 1, 1.0F);
  const fs::path temporary = folder / "step-000002.tmp";
  fs::copy(path, temporary);
  fs::remove(temporary / kManifestName);
  EXPECT_EQ(open_and_verify(temporary), Errors{"PW110 the checkpoint was never finished"});
  EXPECT_EQ(list_checkpoints(folder).size(), 1u);
}

// Files without a manifest, as PyTorch's HuggingFaceStorageWriter leaves them.
void write_shard(const fs::path& path, const std::vector<int64_t>& begin,
                 const std::vector<int64_t>& sizes, DType dtype = DType::kU8) {
  SafetensorsWriter writer(
      path, lay_out_safetensors({{"w", dtype, sizes}}, sharding_metadata({{"w", begin}})));
  const std::vector<std::byte> data(writer.header().data_size());
  writer.write(data);
  writer.commit();
}

TEST(ShardsTest, GapsOverlapsAndMismatchesAreFound) {
  const auto with =
      [](const std::vector<std::pair<std::vector<int64_t>, std::vector<int64_t>>>& boxes) {
        const fs::path folder = scratch_folder("shards");
        int index = 0;
        for (const auto& [begin, sizes] : boxes)
          write_shard(folder / ("shard-" + std::to_string(++index) + ".safetensors"), begin, sizes);
        return open_and_verify(folder);
      };
  EXPECT_EQ(with({{{0, 0}, {2, 4}}, {{2, 0}, {3, 4}}}), Errors{});
  EXPECT_EQ(with({{{0, 0}, {2, 4}}, {{2, 0}, {0, 4}}}), Errors{});
  EXPECT_EQ(with({{{0, 0}, {2, 4}}, {{3, 0}, {2, 4}}}),
            Errors{"PW112 tensor `w` of U8[5, 4]: no file has elements [2:3, 0:4]"});
  EXPECT_EQ(with({{{0, 0}, {2, 4}}, {{1, 2}, {2, 2}}}),
            (Errors{"PW112 tensor `w` of U8[3, 4]: no file has elements [2:3, 0:2]",
                    "PW112 tensor `w` of U8[3, 4]: two files have elements [1:2, 2:4]: "
                    "shard-1.safetensors and shard-2.safetensors"}));
  EXPECT_EQ(with({{{0, 0}, {2, 4}}, {{2}, {2}}}),
            Errors{"PW113 tensor `w`: expected U8 and 2 dimensions, as in shard-1.safetensors, got "
                   "U8[2]"});
  // Sizes of a whole tensor that no memory has.
  EXPECT_EQ(with({{{INT64_MAX / 2, INT64_MAX / 2}, {1, 1}}}).size(), 1u);
}

TEST(ShardsTest, ShardingInfoIsChecked) {
  const fs::path folder = scratch_folder("info");
  for (const char* info :
       {"", "{", "[]", "{}", "{\"w\":{}}", "{\"w\":{\"saved_offsets\":[0]}}",
        "{\"w\":{\"saved_offsets\":[0,-1]}}", "{\"w\":{\"saved_offsets\":[0,1.5]}}",
        "{\"w\":{\"saved_offsets\":[0,\"1\"]}}",
        "{\"w\":{\"saved_offsets\":[0,9223372036854775807]}}",
        "{\"w\":{\"saved_offsets\":[0,18446744073709551615]}}"}) {
    SafetensorsWriter writer(
        folder / "x.safetensors",
        lay_out_safetensors({{"w", DType::kU8, {1, 1}}}, {{"DCP_SHARDING_INFO", info}}));
    writer.write(std::vector<std::byte>(1));
    writer.commit();
    const Errors errors = open_and_verify(folder);
    ASSERT_EQ(errors.size(), 1u) << info;
    EXPECT_TRUE(errors[0].starts_with("PW104")) << errors[0];
  }
}

TEST(ManifestTest, ItIsReadBackAndItsChecksumIsPythons) {
  Manifest manifest;
  manifest.step = 1LL << 40;
  manifest.save_id = "id";
  manifest.schedule = "1F1B \"x\"\n";
  manifest.program_digest = "0123";
  manifest.mesh = {{"pp", 2}, {"dp", 3}};
  manifest.files = {{"a.safetensors", UINT64_MAX, 0xFFFFFFFF}, {"b.safetensors", 0, 0}};
  manifest.tensors = {{{"w", DType::kBF16, {1LL << 40, 0}}, "[1, 2] dp=2:shard(0)"},
                      {{"s", DType::kF32, {}}, ""}};
  manifest.state = {{"generator.0", "AAEC"}, {"lr", "0.001"}};
  const std::string text = manifest_text(manifest);
  ir::Diagnostics diagnostics;
  const auto read_back = parse_manifest({"m", text}, &diagnostics);
  ASSERT_TRUE(read_back) << diagnostics.kept()[0].message;
  EXPECT_EQ(*read_back, manifest);
  // zlib.crc32 of the text with zeros in place of the checksum.
  const size_t at = text.find("\"checksum\": \"") + 13;
  std::string zeroed = text;
  zeroed.replace(at, 8, "00000000");
  EXPECT_EQ(text.substr(at, 8), crc32_text(crc32(std::as_bytes(std::span(zeroed)))));
}

TEST(ManifestTest, WhatANewerVersionWroteIsRefused) {
  const auto error_of = [](std::string text) {
    ir::Diagnostics diagnostics;
    EXPECT_FALSE(parse_manifest({"m", std::move(text)}, &diagnostics));
    EXPECT_EQ(diagnostics.total(), 1u);
    return diagnostics.kept()[0].message;
  };
  EXPECT_EQ(error_of("{\"format\": \"pipewright checkpoint\", \"version\": 2}"),
            "expected version 1, got 2");
  EXPECT_EQ(error_of("{}"), "expected \"format\": \"pipewright checkpoint\"");
  EXPECT_EQ(error_of("[]"), "expected \"format\": \"pipewright checkpoint\"");
  EXPECT_NE(error_of("{\"format\": \"pipewright checkpoint\", \"version\": 1}").find("checksum"),
            std::string::npos);
  // Whoever computes a checksum can write any manifest, but not one that leads out of its folder.
  Manifest manifest;
  for (const char* name : {"../x", "/etc/passwd", "", ".", ".."}) {
    manifest.files = {{name, 1, 1}};
    EXPECT_NE(error_of(manifest_text(manifest)).find("expected the name of a file"),
              std::string::npos);
  }
}

}  // namespace
}  // namespace pipewright::checkpoint
