// The crash-safe protocol: whatever happens while a checkpoint is saved, the one before is whole
// and found, or the new one is.
#include "pipewright/checkpoint/save.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <barrier>
#include <csignal>
#include <cstring>
#include <stdexcept>
#include <thread>

#include "pipewright/checkpoint/folder.h"
#include "pipewright/checkpoint/read_plan.h"
#include "pipewright/checkpoint/safetensors_file.h"
#include "tests/checkpoint/faults.h"
#include "tests/checkpoint/scratch.h"

namespace pipewright::checkpoint {
namespace {

namespace fs = std::filesystem;
using tests::Fault;
using tests::scratch_folder;

std::vector<std::string> alone(const std::string& mine) { return {mine}; }

// Two tensors whose values tell the step.
struct Model {
  explicit Model(int64_t step)
      : weight(64, static_cast<float>(step)), bias(3, float(step) + 0.5F) {}
  std::vector<float> weight;
  std::vector<float> bias;

  Snapshot snapshot(int64_t step) const {
    Snapshot snapshot;
    snapshot.step = step;
    snapshot.parts = {
        {"weight", DType::kF32, {8, 8}, {{0, 0}, {8, 8}}, std::as_bytes(std::span(weight)), ""},
        {"bias", DType::kF32, {3}, {{0}, {3}}, std::as_bytes(std::span(bias)), ""}};
    snapshot.state = {{"lr", std::to_string(step)}};
    snapshot.schedule = "1F1B";
    snapshot.program_digest = "d";
    snapshot.mesh = {{"pp", 1}};
    return snapshot;
  }
};

fs::path save_step(const fs::path& folder, int64_t step, int keep = 2) {
  Saver saver({folder, 0, keep}, alone);
  return saver.save(Model(step).snapshot(step));
}

// Expects a whole checkpoint with the values of its step.
void expect_whole(const fs::path& path, int64_t step) {
  CheckpointReport report;
  const auto checkpoint = StoredCheckpoint::open(path, &report);
  ASSERT_TRUE(checkpoint) << path << report.files[0].diagnostics.kept()[0].message;
  checkpoint->verify(&report, nullptr);
  EXPECT_TRUE(report.ok()) << path;
  ASSERT_TRUE(checkpoint->manifest());
  EXPECT_EQ(checkpoint->manifest()->step, step);
  EXPECT_EQ(checkpoint->manifest()->state.at("lr"), std::to_string(step));
  std::vector<float> weight(64);
  const WantedBox wanted{"weight", {{0, 0}, {8, 8}}};
  const std::span<std::byte> buffer = std::as_writable_bytes(std::span(weight));
  read(plan_reads(checkpoint->tensors(), {&wanted, 1}), *checkpoint, {&buffer, 1});
  EXPECT_EQ(weight, Model(step).weight);
}

// Expects that every checkpoint is whole, and returns the step of the one to resume from.
int64_t expect_all_whole(const fs::path& folder) {
  for (const FolderEntry& entry : list_checkpoints(folder)) expect_whole(entry.path, entry.step);
  CheckpointReport report;
  const auto latest = open_latest(folder, &report);
  EXPECT_TRUE(report.ok());
  return latest ? latest->checkpoint.manifest()->step : -1;
}

bool has_leftovers(const fs::path& folder) {
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (entry.path().extension() == ".tmp") return true;
  }
  return false;
}

std::vector<int64_t> steps_in(const fs::path& folder) {
  std::vector<int64_t> steps;
  for (const FolderEntry& entry : list_checkpoints(folder)) steps.push_back(entry.step);
  return steps;
}

// Runs `work` in a process with a fault; returns its exit code: 0 if it was done, 1 if it threw.
int run_with(const Fault& fault, const std::function<void()>& work) {
  const pid_t child = fork();
  if (child == 0) {
    tests::set_fault(fault);
    try {
      work();
    } catch (const std::exception&) {
      _exit(1);
    }
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

fs::path folder_with_two() {
  const fs::path folder = scratch_folder("sweep");
  save_step(folder, 100);
  save_step(folder, 200);
  return folder;
}

// How many steps it takes to save step `next` after steps 100 and 200.
int steps_to_save(int64_t next) {
  const fs::path folder = folder_with_two();
  return run_with({}, [&] {
    save_step(folder, next);
    _exit(tests::steps_taken());
  });
}

// Saves step `next` with a fault at each step of the protocol in turn, into a folder with
// checkpoints of steps 100 and 200. Whatever happens, step 200 or `next` is found, all checkpoints
// are whole, and the next save succeeds.
void sweep(Fault::Kind kind, int error, int64_t next) {
  const int steps = steps_to_save(next);
  ASSERT_GT(steps, 20);
  for (int at_step = 1; at_step <= steps + 1; ++at_step) {
    SCOPED_TRACE("fault at step " + std::to_string(at_step));
    const fs::path folder = folder_with_two();
    const int code = run_with({at_step, kind, error}, [&] {
      save_step(folder, next);
      ::rmdir("");  // a last step, after the save
    });
    if (kind == Fault::kError) {
      EXPECT_TRUE(code == 0 || code == 1) << code;
    } else {
      EXPECT_EQ(code, tests::kCrashed);
    }
    const int64_t latest = expect_all_whole(folder);
    EXPECT_TRUE(latest == 200 || latest == next) << latest;
    // Who was told that it is saved will find it.
    EXPECT_TRUE((code != 0 && at_step <= steps) || latest == next) << latest;
    save_step(folder, 400);
    EXPECT_EQ(expect_all_whole(folder), 400);
    EXPECT_FALSE(has_leftovers(folder));
    if (testing::Test::HasFailure()) return;
  }
}

TEST(SaveTest, ItSurvivesAKillAtEachStep) { sweep(Fault::kKill, 0, 300); }
TEST(SaveTest, ItSurvivesAPowerLossAtEachStep) { sweep(Fault::kPowerLoss, 0, 300); }
TEST(SaveTest, ItSurvivesAFullDiskAtEachStep) { sweep(Fault::kError, ENOSPC, 300); }
TEST(SaveTest, ItSurvivesABrokenDiskAtEachStep) { sweep(Fault::kError, EIO, 300); }
// The same step is saved again, as after a resume from an earlier one.
TEST(SaveTest, ReplacingSurvivesAKillAtEachStep) { sweep(Fault::kKill, 0, 200); }
TEST(SaveTest, ReplacingSurvivesAPowerLossAtEachStep) { sweep(Fault::kPowerLoss, 0, 200); }

TEST(SaveTest, OlderCheckpointsAreRemovedAndLatestNamesTheNew) {
  const fs::path folder = scratch_folder("prune");
  for (const int64_t step : {10, 20, 30, 40}) save_step(folder, step, 3);
  EXPECT_EQ(steps_in(folder), (std::vector<int64_t>{20, 30, 40}));
  EXPECT_EQ(tests::read_file(folder / "latest"), "step-000040\n");
  // Resumed at step 20, and saved at step 25: later steps stay, but are not the latest.
  save_step(folder, 25, 1);
  EXPECT_EQ(steps_in(folder), (std::vector<int64_t>{25, 30, 40}));
  EXPECT_EQ(expect_all_whole(folder), 25);
}

// Ranks as threads of one process.
template <typename Work>
std::vector<std::string> on_ranks(int ranks, const Work& work) {
  std::vector<std::string> texts(static_cast<size_t>(ranks)), errors(static_cast<size_t>(ranks));
  std::barrier barrier(ranks);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      const Exchange exchange = [&, rank](const std::string& mine) {
        texts[static_cast<size_t>(rank)] = mine;
        barrier.arrive_and_wait();
        const std::vector<std::string> all = texts;
        barrier.arrive_and_wait();
        return all;
      };
      try {
        work(rank, exchange);
      } catch (const std::exception& error) {
        errors[static_cast<size_t>(rank)] = error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return errors;
}

// Each of four ranks owns a column of a [4, 8] tensor, in two boxes each.
Snapshot part_of(int rank, int64_t step, std::span<const float> data) {
  Snapshot snapshot;
  snapshot.step = step;
  for (const int64_t begin : {0, 4})
    snapshot.parts.push_back(
        {"w", DType::kF32, {4, 8}, {{0, begin + rank}, {4, 1}}, std::as_bytes(data), ""});
  snapshot.state = {{"generator." + std::to_string(rank), "x"}, {"lr", "1"}};
  return snapshot;
}

TEST(SaveTest, AllRanksWriteTheirBoxes) {
  const fs::path folder = scratch_folder("ranks");
  const auto errors = on_ranks(4, [&](int rank, const Exchange& exchange) {
    const std::vector<float> data(4, static_cast<float>(rank));
    Saver saver({folder, rank}, exchange);
    EXPECT_EQ(saver.save(part_of(rank, 7, data)), folder / "step-000007");
  });
  EXPECT_EQ(errors, std::vector<std::string>(4));
  CheckpointReport report;
  const auto checkpoint = StoredCheckpoint::open(folder / "step-000007", &report);
  ASSERT_TRUE(checkpoint);
  checkpoint->verify(&report, nullptr);
  EXPECT_TRUE(report.ok());
  EXPECT_EQ(checkpoint->files().size(), 8u);
  EXPECT_EQ(checkpoint->manifest()->state.size(), 5u);
  std::vector<float> values(32);
  const WantedBox wanted{"w", {{0, 0}, {4, 8}}};
  const std::span<std::byte> buffer = std::as_writable_bytes(std::span(values));
  read(plan_reads(checkpoint->tensors(), {&wanted, 1}), *checkpoint, {&buffer, 1});
  for (size_t index = 0; index < 32; ++index)
    EXPECT_EQ(values[index], static_cast<float>(index % 4));
}

// Each row: what rank 2 does wrong, and the error that all ranks then throw.
TEST(SaveTest, AnErrorOfOneRankIsThrownByAll) {
  const std::vector<float> data(4);
  const struct {
    std::function<void(Snapshot*)> spoil;
    std::string error;
  } kCases[] = {
      {[](Snapshot* s) { s->parts.pop_back(); },
       "rank 0: tensor `w`: no rank saves elements [0:4, 6:7]"},
      {[](Snapshot* s) { s->parts[0].box.begin[1] = 1; },
       "rank 0: tensor `w`: no rank saves elements [0:4, 2:3]"},
      {[&](Snapshot* s) {
         s->parts.push_back({"w", DType::kF32, {4, 8}, {{0, 3}, {4, 1}}, s->parts[0].data, ""});
       },
       "rank 0: tensor `w`: elements [0:4, 3:4] are saved twice"},
      {[](Snapshot* s) { s->parts[0].box.begin[1] = 8; },
       "rank 2: tensor `w`: expected a box in [0:4, 0:8], got [0:4, 8:9]"},
      {[](Snapshot* s) { s->parts[0].box.begin[1] = INT64_MAX; },
       "rank 2: tensor `w`: expected a box in [0:4, 0:8], got [0:4, "
       "9223372036854775807:9223372036854775807]"},
      {[](Snapshot* s) { s->parts[0].data = s->parts[0].data.first(15); },
       "rank 2: tensor `w`: expected 16 bytes of data, got 15"},
      {[](Snapshot* s) {
         s->parts[0].shape = {4, 9};
       },
       "rank 0: tensor `w`: expected one type, shape and layout on all ranks, got two"},
      {[](Snapshot* s) { s->state["lr"] = "2"; },
       "rank 0: state `lr`: expected one value on all ranks, got two"},
  };
  const fs::path folder = scratch_folder("errors");
  for (const auto& one : kCases) {
    const auto errors = on_ranks(4, [&](int rank, const Exchange& exchange) {
      Saver saver({folder, rank}, exchange);
      saver.save(part_of(rank, 1, data));
      Snapshot snapshot = part_of(rank, 2, data);
      if (rank == 2) one.spoil(&snapshot);
      saver.save(snapshot);
    });
    EXPECT_EQ(errors, std::vector<std::string>(4, one.error));
    EXPECT_EQ(steps_in(folder), std::vector<int64_t>{1});
    EXPECT_FALSE(has_leftovers(folder));
  }
}

TEST(SaveTest, AnExchangeThatFailsLeavesTheLastCheckpoint) {
  const fs::path folder = scratch_folder("exchange");
  save_step(folder, 1);
  int calls = 0;
  Saver saver({folder, 0}, [&](const std::string& mine) -> std::vector<std::string> {
    if (++calls == 3) throw std::runtime_error("rank 1 did not take part in 30 s");
    return {mine};
  });
  EXPECT_THROW(saver.save(Model(2).snapshot(2)), std::runtime_error);
  EXPECT_EQ(steps_in(folder), std::vector<int64_t>{1});
  EXPECT_EQ(expect_all_whole(folder), 1);
  EXPECT_FALSE(has_leftovers(folder));
}

template <typename Work>
std::string error_of(const Work& work) {
  try {
    work();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

TEST(SaveTest, TwoJobsCannotSaveIntoOneFolder) {
  const fs::path folder = scratch_folder("two_jobs");
  Saver first({folder, 0}, alone);
  const std::string error = error_of([&] { Saver second({folder, 0}, alone); });
  EXPECT_NE(error.find("another job saves there (process " + std::to_string(getpid()) + " on "),
            std::string::npos)
      << error;
  first.save(Model(1).snapshot(1));
  EXPECT_EQ(expect_all_whole(folder), 1);
}

// A real limit, as of a quota: the kernel refuses to let a file grow.
TEST(SaveTest, ADiskThatIsFullIsNamed) {
  const fs::path folder = scratch_folder("full");
  save_step(folder, 1);
  const int code = run_with({}, [&] {
    signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{300, 300};
    setrlimit(RLIMIT_FSIZE, &limit);
    const std::string error = error_of([&] { save_step(folder, 2); });
    if (error.find("rank 0: cannot write `") == std::string::npos ||
        error.find("shard-00001-model-00001-of-00001.safetensors.tmp`: File too large") ==
            std::string::npos)
      throw std::runtime_error(error);
  });
  EXPECT_EQ(code, 0);
  EXPECT_EQ(steps_in(folder), std::vector<int64_t>{1});
  EXPECT_EQ(expect_all_whole(folder), 1);
  EXPECT_FALSE(has_leftovers(folder));
}

TEST(SaveTest, AFolderThatCannotBeWrittenIsNamed) {
  const fs::path file = scratch_folder("read_only") / "file";
  tests::write_file(file, "");
  EXPECT_NE(error_of([&] { save_step(file / "ckpt", 1); }).find("cannot create `"),
            std::string::npos);
  EXPECT_EQ(error_of([&] { save_step("/proc/ckpt", 1); }),
            "rank 0: cannot create `/proc/ckpt`: No such file or directory");
}

}  // namespace
}  // namespace pipewright::checkpoint
