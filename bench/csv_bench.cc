// Measures reading and writing PyTorch's CSV, of 1 and 10 million actions, on one thread.
//
//   bazel run //bench:csv_bench
//
// items_per_second is actions per second; bytes_per_second, of reading, is text parsed per second.
// Both are from memory to memory: no file or pipe is involved.
#include <benchmark/benchmark.h>

#include <ostream>
#include <sstream>
#include <streambuf>

#include "pipewright/ir/diagnostic.h"
#include "pipewright/ir/text/csv.h"

namespace {

using namespace pipewright::ir;

// Rows like those of a lowered interleaved schedule of 32 ranks: F and B of four stages per rank,
// each with a SEND and a RECV, and numbers of one to three digits.
Rows lowered_rows(int actions) {
  constexpr int kRanks = 32, kStagesPerRank = 4;
  const int steps = actions / kRanks / 6;
  Rows rows(kRanks);
  for (int rank = 0; rank < kRanks; ++rank) {
    for (int step = 0; step < steps; ++step) {
      const int stage = rank + kRanks * (step % kStagesPerRank),
                microbatch = step / kStagesPerRank % 1000;
      Row& row = rows[static_cast<size_t>(rank)];
      for (const ActionKind kind :
           {ActionKind::kRecvF, ActionKind::kForward, ActionKind::kSendF, ActionKind::kRecvB,
            ActionKind::kBackward, ActionKind::kSendB}) {
        row.push_back(Action(kind, stage, microbatch));
      }
    }
  }
  return rows;
}

size_t count(const Rows& rows) {
  size_t actions = 0;
  for (const Row& row : rows) actions += row.size();
  return actions;
}

void read_csv(benchmark::State& state) {
  const Rows rows = lowered_rows(static_cast<int>(state.range(0)));
  std::ostringstream text;
  print_csv(rows, text);
  const Source source{"bench.csv", text.str()};
  for (auto _ : state) {
    Diagnostics diagnostics;
    auto parsed = parse_csv(source, &diagnostics);
    if (!parsed) state.SkipWithError("a valid CSV was rejected");
    benchmark::DoNotOptimize(parsed);
  }
  state.SetItemsProcessed(state.iterations() * static_cast<int64_t>(count(rows)));
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(source.text.size()));
}

// Discards what is written and counts its bytes, so that no file or pipe is measured.
class NullBuffer : public std::streambuf {
 public:
  size_t bytes = 0;

 protected:
  std::streamsize xsputn(const char*, std::streamsize size) override {
    bytes += static_cast<size_t>(size);
    return size;
  }
  int_type overflow(int_type letter) override {
    ++bytes;
    return traits_type::not_eof(letter);
  }
};

void write_csv(benchmark::State& state) {
  const Rows rows = lowered_rows(static_cast<int>(state.range(0)));
  for (auto _ : state) {
    NullBuffer buffer;
    std::ostream out(&buffer);
    print_csv(rows, out);
    benchmark::DoNotOptimize(buffer.bytes);
  }
  state.SetItemsProcessed(state.iterations() * static_cast<int64_t>(count(rows)));
}

BENCHMARK(read_csv)->Arg(1'000'000)->Arg(10'000'000)->Unit(benchmark::kMillisecond);
BENCHMARK(write_csv)->Arg(1'000'000)->Arg(10'000'000)->Unit(benchmark::kMillisecond);

}  // namespace

BENCHMARK_MAIN();
