#include <gtest/gtest.h>

#include <latch>
#include <optional>
#include <stdexcept>

#include "pipewright/checkpoint/folder.h"
#include "pipewright/checkpoint/save.h"
#include "pipewright/checkpoint/stored_checkpoint.h"
#include "tests/checkpoint/scratch.h"

namespace pipewright::checkpoint {
namespace {

namespace fs = std::filesystem;
using std::chrono::milliseconds;
using tests::scratch_folder;

// A tensor whose values tell the step.
struct StepSnapshot {
  explicit StepSnapshot(int64_t step) : values(8, static_cast<float>(step)) {
    snapshot.step = step;
    snapshot.parts = {
        {"weight", DType::kF32, {8}, {{0}, {8}}, std::as_bytes(std::span(values)), ""}};
  }
  std::vector<float> values;
  Snapshot snapshot;
};
std::shared_ptr<const Snapshot> snapshot_of(int64_t step) {
  const auto owner = std::make_shared<StepSnapshot>(step);
  return {owner, &owner->snapshot};
}

// The world of one rank, whose saves stop at their first exchange until they are released.
struct Gate {
  std::vector<std::string> operator()(const std::string& mine) {
    if (is_closed) released.wait();
    return {mine};
  }
  std::latch released{1};
  bool is_closed = false;
};

std::optional<int64_t> latest_step(const fs::path& folder) {
  CheckpointReport report;
  const auto latest = open_latest(folder, &report);
  EXPECT_TRUE(report.ok());
  if (!latest) return std::nullopt;
  latest->checkpoint.verify(&report, nullptr);
  EXPECT_TRUE(report.ok());
  return latest->checkpoint.manifest()->step;
}

TEST(AsyncSaver, TheCallerGoesOnWhileItSaves) {
  const fs::path folder = scratch_folder("async");
  Gate gate;
  AsyncSaver saver({.folder = folder}, std::ref(gate));
  EXPECT_EQ(saver.wait(), "");
  saver.start(snapshot_of(100));
  EXPECT_EQ(saver.wait(), folder / "step-000100");

  gate.is_closed = true;
  saver.start(snapshot_of(200));
  EXPECT_EQ(latest_step(folder), 100);  // so it has returned before it has saved
  gate.released.count_down();
  EXPECT_EQ(saver.wait(), folder / "step-000200");
  EXPECT_EQ(latest_step(folder), 200);
  EXPECT_EQ(saver.wait(), "");
}

TEST(AsyncSaver, OneSaveAtATime) {
  const fs::path folder = scratch_folder("one");
  Gate gate;
  AsyncSaver saver({.folder = folder}, std::ref(gate));
  gate.is_closed = true;
  saver.start(snapshot_of(100));
  auto second = std::async(std::launch::async, [&] { saver.start(snapshot_of(200)); });
  EXPECT_EQ(second.wait_for(milliseconds(50)), std::future_status::timeout);
  gate.released.count_down();
  second.get();
  EXPECT_EQ(saver.wait(), folder / "step-000200");
  EXPECT_EQ(list_checkpoints(folder).size(), 2u);
}

// The caller goes on while its state is copied, up to the next update.
TEST(AsyncSaver, CopiesBesideTheCaller) {
  const fs::path folder = scratch_folder("copies");
  Gate gate;
  AsyncSaver saver({.folder = folder}, std::ref(gate));
  saver.wait_copied();  // nothing is under way
  const auto state = std::make_shared<StepSnapshot>(100);
  std::latch may_copy{1};
  gate.is_closed = true;
  saver.start({state, &state->snapshot}, [&] {
    may_copy.wait();
    state->values.assign(8, 1);
  });
  auto copied = std::async(std::launch::async, [&] { saver.wait_copied(); });
  EXPECT_EQ(copied.wait_for(milliseconds(50)), std::future_status::timeout);
  may_copy.count_down();
  copied.get();  // although the save has not gone further than its first exchange
  EXPECT_EQ(state->values[0], 1);
  saver.wait_copied();
  gate.released.count_down();
  saver.wait();
  EXPECT_EQ(latest_step(folder), 100);
}

TEST(AsyncSaver, ACopyThatFailsFailsTheSave) {
  const fs::path folder = scratch_folder("copy_fails");
  AsyncSaver saver({.folder = folder}, [](const std::string& mine) { return std::vector{mine}; });
  saver.start(snapshot_of(100));
  saver.start(snapshot_of(200), [] { throw std::runtime_error("the device is lost"); });
  saver.wait_copied();
  try {
    saver.wait();
    FAIL() << "expected an error";
  } catch (const std::runtime_error& error) {
    EXPECT_STREQ(error.what(), "rank 0: the device is lost");
  }
  EXPECT_EQ(latest_step(folder), 100);
}

TEST(AsyncSaver, ReleasesTheSnapshotOnceItIsSaved) {
  AsyncSaver saver({.folder = scratch_folder("release")},
                   [](const std::string& mine) { return std::vector{mine}; });
  auto snapshot = snapshot_of(100);
  const std::weak_ptr<const Snapshot> memory = snapshot;
  saver.start(std::move(snapshot));
  saver.wait();
  EXPECT_TRUE(memory.expired());
}

TEST(AsyncSaver, TheNextCallThrowsAnErrorOnce) {
  const fs::path folder = scratch_folder("error");
  bool fails = false;
  AsyncSaver saver({.folder = folder}, [&](const std::string& mine) {
    if (fails) throw std::runtime_error("rank 1 is lost");
    return std::vector{mine};
  });
  saver.start(snapshot_of(100));
  saver.wait();
  fails = true;
  saver.start(snapshot_of(200));
  EXPECT_THROW(saver.start(snapshot_of(300)), std::runtime_error);
  EXPECT_EQ(saver.wait(), "");  // the third save was not started
  EXPECT_EQ(latest_step(folder), 100);
  fails = false;
  saver.start(snapshot_of(400));
  saver.wait();
  EXPECT_EQ(latest_step(folder), 400);
}

TEST(AsyncSaver, TheDestructorWaits) {
  const fs::path folder = scratch_folder("destructor");
  {
    AsyncSaver saver({.folder = folder}, [](const std::string& mine) { return std::vector{mine}; });
    saver.start(snapshot_of(100));
  }
  EXPECT_EQ(latest_step(folder), 100);
}

}  // namespace
}  // namespace pipewright::checkpoint
