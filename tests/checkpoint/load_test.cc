// Loading on several ranks, which are threads: all take the same checkpoint, and have the same
// errors.
#include "pipewright/checkpoint/load.h"

#include <gtest/gtest.h>

#include <barrier>
#include <thread>

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
    load(open_on_all(path, exchange), places, nullptr, exchange);
    EXPECT_EQ(column, rank == 0 ? (std::vector<float>{1, 3, 5}) : (std::vector<float>{2, 4, 6}));
  });
  EXPECT_EQ(errors, (std::vector<std::string>{"", ""}));
}

// A rank that cannot open it, and one that asks for more than there is.
TEST(Load, AllRanksHaveTheErrorOfOne) {
  const fs::path path = save_step(scratch_folder("errors"), 1);
  auto errors = on_two_ranks([&](int rank, const Exchange& exchange) {
    open_on_all(rank == 0 ? path : path / "nowhere", exchange);
  });
  EXPECT_EQ(errors[0].find("rank 1: cannot "), 0u) << errors[0];
  EXPECT_EQ(errors[0], errors[1]);

  errors = on_two_ranks([&](int rank, const Exchange& exchange) {
    std::vector<float> values(6, 0);
    const std::vector<TensorPlace> places = {
        {"w", DType::kF32, {3, 2}, {{rank, 0}, {3, 2}}, std::as_writable_bytes(std::span(values))}};
    const StoredCheckpoint checkpoint = open_on_all(path, exchange);
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

}  // namespace
}  // namespace pipewright::checkpoint
