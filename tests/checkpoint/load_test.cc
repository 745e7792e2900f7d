// Loading on several ranks, which are threads: all take the same checkpoint, and have the same
// errors.
#include "pipewright/checkpoint/load.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <barrier>
#include <thread>

#include "pipewright/checkpoint/folder.h"
#include "pipewright/checkpoint/save.h"
#include "tests/checkpoint/scratch.h"

namespace pipewright::checkpoint {
namespace {

namespace fs = std::filesystem;
using tests::scratch_folder;
using tests::write_file;

std::vector<std::string> alone(const std::string& mine) { return {mine}; }

// Runs `body` on two ranks. Returns their errors.
std::vector<std::string> on_two_ranks(
    const std::function<void(int rank, const Exchange& exchange)>& body) {
  std::vector<std::string> texts(2), errors(2);
  std::barrier barrier(2);
  const auto run = [&](int rank) {
    const auto index = static_cast<size_t>(rank);
    try {
      body(rank, [&, index](const std::string& mine) {
        texts[index] = mine;
        barrier.arrive_and_wait();
        const std::vector<std::string> all = texts;
        barrier.arrive_and_wait();
        return all;
      });
    } catch (const std::exception& error) {
      errors[index] = error.what();
    }
  };
  std::thread other(run, 1);
  run(0);
  other.join();
  return errors;
}

fs::path save_step(const fs::path& folder, int64_t step) {
  const std::vector<float> values = {1, 2, 3, 4, 5, 6};
  Snapshot snapshot;
  snapshot.step = step;
  snapshot.parts = {
      {"w", DType::kF32, {3, 2}, {{0, 0}, {3, 2}}, std::as_bytes(std::span(values)), ""}};
  return Saver({.folder = folder}, alone).save(snapshot);
}

TEST(Load, EachRankReadsItsBoxes) {
  const fs::path path = save_step(scratch_folder("boxes"), 1);
  const auto errors = on_two_ranks([&](int rank, const Exchange& exchange) {
    std::vector<float> column(3);
    const std::vector<TensorPlace> places = {
        {"w", DType::kF32, {3, 2}, {{0, rank}, {3, 1}}, std::as_writable_bytes(std::span(column))}};
    load(open_on_all(path, rank, exchange), places, nullptr, exchange);
    EXPECT_EQ(column, rank == 0 ? (std::vector<float>{1, 3, 5}) : (std::vector<float>{2, 4, 6}));
  });
  EXPECT_EQ(errors, (std::vector<std::string>{"", ""}));
}

// A rank that cannot open it, and one that asks for more than there is.
TEST(Load, AllRanksHaveTheErrorOfOne) {
  const fs::path path = save_step(scratch_folder("errors"), 1);
  auto errors = on_two_ranks([&](int rank, const Exchange& exchange) {
    open_on_all(rank == 0 ? path : path / "nowhere", rank, exchange);
  });
  EXPECT_EQ(errors[0].find("rank 1: cannot "), 0u) << errors[0];
  EXPECT_EQ(errors[0], errors[1]);

  errors = on_two_ranks([&](int rank, const Exchange& exchange) {
    std::vector<float> values(6, 0);
    const std::vector<TensorPlace> places = {
        {"w", DType::kF32, {3, 2}, {{rank, 0}, {3, 2}}, std::as_writable_bytes(std::span(values))}};
    const StoredCheckpoint checkpoint = open_on_all(path, rank, exchange);
    try {
      load(checkpoint, places, nullptr, exchange);
    } catch (const std::exception&) {
      EXPECT_EQ(values, std::vector<float>(6, 0));  // nothing is read
      throw;
    }
  });
  EXPECT_EQ(errors[0], "rank 1: tensor `w`: expected a box in [0:3, 0:2], got [1:4, 0:2]");
  EXPECT_EQ(errors[0], errors[1]);
}

TEST(Load, TheLatestThatIsWhole) {
  const fs::path folder = scratch_folder("latest");
  const auto open_latest_step = [&](std::string* warnings) {
    std::vector<int64_t> steps(2, -1);
    const auto errors = on_two_ranks([&](int rank, const Exchange& exchange) {
      const auto latest = open_latest_on_all(folder, rank, exchange,
                                             [&](const std::string& text) { *warnings += text; });
      if (latest) steps[static_cast<size_t>(rank)] = latest->checkpoint.manifest()->step;
    });
    EXPECT_EQ(errors[0], errors[1]);
    EXPECT_EQ(steps[0], steps[1]);
    return errors[0].empty() ? std::to_string(steps[0]) : errors[0];
  };
  std::string warnings;
  EXPECT_EQ(open_latest_step(&warnings), "-1");
  fs::remove(folder);
  EXPECT_EQ(open_latest_step(&warnings), "-1");
  save_step(folder, 1);
  const fs::path second = save_step(folder, 2);
  EXPECT_EQ(open_latest_step(&warnings), "2");
  EXPECT_EQ(warnings, "");
  write_file(second / "pipewright.json", "{}");
  EXPECT_EQ(open_latest_step(&warnings), "1");
  EXPECT_NE(warnings.find("step-000002"), std::string::npos) << warnings;
  write_file(folder / "step-000001" / "pipewright.json", "{}");
  EXPECT_EQ(open_latest_step(&warnings).find("rank 0: no checkpoint in `"), 0u);
}

// Two ranks save a file each, and each verifies one.
fs::path save_on_two_ranks(const fs::path& folder, int64_t step) {
  const std::vector<float> values = {1, 2, 3};
  on_two_ranks([&](int rank, const Exchange& exchange) {
    Snapshot snapshot;
    snapshot.step = step;
    snapshot.parts = {
        {"w", DType::kF32, {2, 3}, {{rank, 0}, {1, 3}}, std::as_bytes(std::span(values)), ""}};
    Saver({.folder = folder, .rank = rank}, exchange).save(snapshot);
  });
  return folder / step_name(step);
}

std::string shard(int rank) {
  return "shard-0000" + std::to_string(rank + 1) + "-model-00001-of-00001.safetensors";
}

void flip_last_bit(const fs::path& path) {
  std::string bytes = tests::read_file(path);
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  write_file(path, bytes);
}

TEST(Load, AFlippedBitIsOneErrorOnAllRanks) {
  for (const std::vector<int>& damaged : {std::vector<int>{0}, {1}, {0, 1}}) {
    const fs::path path = save_on_two_ranks(scratch_folder("flipped"), 1);
    const auto open = [&](Verify verify) {
      return on_two_ranks(
          [&](int rank, const Exchange& exchange) { open_on_all(path, rank, exchange, verify); });
    };
    EXPECT_EQ(open(Verify::kData), (std::vector<std::string>{"", ""}));
    for (const int rank : damaged) flip_last_bit(path / shard(rank));
    const auto errors = open(Verify::kData);
    EXPECT_EQ(errors[0].find("cannot load `" + path.native() + "`:\n"), 0u) << errors[0];
    EXPECT_EQ(errors[0], errors[1]);
    for (int rank = 0; rank < 2; ++rank) {
      const bool is_named =
          errors[0].find((path / shard(rank)).native() + ": error[PW111]: the data are damaged") !=
          std::string::npos;
      EXPECT_EQ(is_named, std::ranges::count(damaged, rank) == 1) << errors[0];
    }
    EXPECT_EQ(open(Verify::kStructure), (std::vector<std::string>{"", ""}));
  }
}

TEST(Load, TheLatestWhoseDataAreWhole) {
  const fs::path folder = scratch_folder("latest_data");
  for (int64_t step = 1; step <= 2; ++step) save_on_two_ranks(folder, step);
  const auto open = [&](Verify verify, std::string* warnings) {
    std::vector<int64_t> steps(2, -1);
    const auto errors = on_two_ranks([&](int rank, const Exchange& exchange) {
      const auto warn = [&](const std::string& text) { *warnings += text + "\n"; };
      steps[static_cast<size_t>(rank)] =
          open_latest_on_all(folder, rank, exchange, warn, verify)->checkpoint.manifest()->step;
    });
    EXPECT_EQ(errors[0], errors[1]);
    EXPECT_EQ(steps[0], steps[1]);
    return errors[0].empty() ? std::to_string(steps[0]) : errors[0];
  };
  std::string warnings;
  EXPECT_EQ(open(Verify::kData, &warnings), "2");
  EXPECT_EQ(warnings, "");
  flip_last_bit(folder / "step-000002" / shard(1));
  EXPECT_EQ(open(Verify::kData, &warnings), "1");
  EXPECT_EQ(std::ranges::count(warnings, '\n'), 1) << warnings;
  EXPECT_NE(warnings.find("step-000002/" + shard(1)), std::string::npos) << warnings;
  EXPECT_EQ(open(Verify::kStructure, &warnings), "2");
  flip_last_bit(folder / "step-000001" / shard(0));
  const std::string error = open(Verify::kData, &warnings);
  EXPECT_EQ(error.find("rank 0: no checkpoint in `" + folder.native() + "` is whole:\n"), 0u);
  for (const std::string& file : {"step-000002/" + shard(1), "step-000001/" + shard(0)})
    EXPECT_NE(error.find(file), std::string::npos) << error;
}

}  // namespace
}  // namespace pipewright::checkpoint
