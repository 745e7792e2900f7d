// Saves a checkpoint of 400 MB and compares with what dd takes to write as many bytes and fsync
// them, alternately: `bazel run //bench:checkpoint_bench -- FOLDER [ROUNDS]`. FOLDER is on the disk
// to measure. Saves it beside training too: the state is copied during the forward and backward of
// the next step, here 0.1 s of arithmetic, and training stops if the copy takes longer. And reads
// half of the columns of each tensor, as tensor parallelism would.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "pipewright/checkpoint/read_plan.h"
#include "pipewright/checkpoint/save.h"

namespace {

namespace fs = std::filesystem;
using namespace pipewright;

constexpr int64_t kRows = 10'000, kColumns = 1'000, kTensors = 10;  // 400 MB of F32

double seconds(const std::function<void()>& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

// Computes for so many seconds.
void train(double duration) {
  const auto start = std::chrono::steady_clock::now();
  volatile double value = 1;
  while (std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() < duration)
    value = value * 1.0000001;
}

using Tensors = std::vector<std::vector<float>>;

Tensors random_tensors() {
  std::mt19937 random(1);
  Tensors tensors(kTensors, std::vector<float>(kRows * kColumns));
  for (std::vector<float>& values : tensors) {
    for (float& value : values) value = static_cast<float>(random());
  }
  return tensors;
}

checkpoint::Snapshot snapshot_of(const Tensors& tensors) {
  checkpoint::Snapshot snapshot;
  for (size_t index = 0; index < tensors.size(); ++index)
    snapshot.parts.push_back({"layers." + std::to_string(index) + ".weight",
                              checkpoint::DType::kF32,
                              {kRows, kColumns},
                              {{0, 0}, {kRows, kColumns}},
                              std::as_bytes(std::span(tensors[index])),
                              ""});
  return snapshot;
}

std::vector<std::string> alone(const std::string& mine) { return {mine}; }

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: checkpoint_bench FOLDER [ROUNDS]\n");
    return 2;
  }
  const fs::path folder = fs::path(argv[1]) / "checkpoint_bench";
  const int rounds = argc > 2 ? std::atoi(argv[2]) : 5;
  const Tensors tensors = random_tensors();
  checkpoint::Snapshot snapshot = snapshot_of(tensors);
  Tensors copy = tensors;  // its memory is that of every copy, as a trainer's is
  const auto copied = std::make_shared<checkpoint::Snapshot>(snapshot_of(copy));
  const double megabytes = 4e-6 * kRows * kColumns * kTensors;
  const std::string dd =
      fmt::format("dd if=/dev/zero of='{}/dd' bs=1000000 count={} conv=fsync 2>/dev/null",
                  folder.native(), megabytes);

  std::vector<double> of_dd, of_save, of_stop, of_beside, of_read;
  {
    checkpoint::Saver saver({folder / "alone", 0, 1}, alone);
    checkpoint::AsyncSaver beside({folder / "beside", 0, 1}, alone);
    for (int round = 0; round < rounds; ++round) {
      of_dd.push_back(seconds([&] {
        if (std::system(dd.c_str()) != 0) std::exit(2);
      }));
      fs::remove(folder / "dd");
      snapshot.step = round;
      fs::path saved;
      of_save.push_back(seconds([&] { saved = saver.save(snapshot); }));
      copied->step = round;
      of_beside.push_back(seconds([&] {
        const double start = seconds([&] {
          beside.start(copied, [&] {
            for (size_t index = 0; index < tensors.size(); ++index)
              std::memcpy(copy[index].data(), tensors[index].data(),
                          sizeof(float) * copy[index].size());
          });
        });
        train(0.1);
        of_stop.push_back(start + seconds([&] { beside.wait_copied(); }));
        beside.wait();
      }));
      checkpoint::CheckpointReport report;
      const auto stored = checkpoint::StoredCheckpoint::open(saved, &report);
      std::vector<float> half(kRows * kColumns / 2);
      of_read.push_back(seconds([&] {
        for (const auto& [name, tensor] : stored->tensors()) {
          const checkpoint::WantedBox wanted{name, {{0, kColumns / 2}, {kRows, kColumns / 2}}};
          const std::span<std::byte> buffer = std::as_writable_bytes(std::span(half));
          read(plan_reads(stored->tensors(), {&wanted, 1}), *stored, {&buffer, 1});
        }
      }));
      std::printf(
          "round %d: dd %.3f s, save %.3f s, save beside training %.3f s of which it stops for "
          "%.3f s, read half of the columns %.3f s\n",
          round, of_dd.back(), of_save.back(), of_beside.back(), of_stop.back(), of_read.back());
    }
  }
  fs::remove_all(folder);
  std::printf("median of %d rounds, %.0f MB: dd %.0f MB/s, save %.0f MB/s, %.2f of dd's time\n",
              rounds, megabytes, megabytes / median(of_dd), megabytes / median(of_save),
              median(of_save) / median(of_dd));
  std::printf("saving beside training stops it for %.1f%% of the save's time\n",
              100 * median(of_stop) / median(of_beside));
  return 0;
}
