// For a wide range of shapes: every stage runs every microbatch once forward and once backward, on
// the rank of the stage and in an order that respects data dependencies, and the peak of live
// activations is that of the schedule's formula, written out here.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

#include "pipewright/ir/dependencies.h"
#include "pipewright/schedules/registry.h"

namespace pipewright::schedules {
namespace {

// The peak number of live activations: F creates one, B or W frees it.
int peak_of(const ir::Row& row) {
  int live = 0, peak = 0;
  for (const ir::Action& action : row) {
    for (const ir::ActionPart part : action.parts()) {
      if (part.kind() == ir::ActionKind::kForward) peak = std::max(peak, ++live);
      if (part.kind() == ir::ActionKind::kBackward ||
          part.kind() == ir::ActionKind::kBackwardWeight)
        --live;
    }
  }
  EXPECT_EQ(live, 0);
  return peak;
}

int expected_peak(std::string_view name, const Shape& shape, int rank) {
  const int P = shape.ranks, V = shape.stages / P, M = shape.microbatches, r = rank;
  const int g = M / std::max(1, M / P);
  if (name == "GPipe") return M;
  if (name == "1F1B" || name == "Seq1F1B") return std::min(M, P - r);  // of whole microbatches
  if (name == "Eager1F1B") return std::min(M, 2 * (P - r) - 1);
  if (name == "ZB-H1") return std::min(M, P);
  if (name == "ZB-H2") return std::min(M, 2 * P - 1);
  if (name == "LoopedBFS") return V * M;
  if (name == "Interleaved1F1B" || name == "Seq1F1B-I")
    return std::min(V * M, (V - 1) * g + 2 * (P - 1 - r) + 1);
  if (name == "InterleavedZeroBubble") return std::min(V * M, (V - 1) * g + P);
  if (name == "ZBVZeroBubble") return std::min({2 * P, 2 * M, M + 1 + r});
  if (name == "DualPipeV") return 2 * P + 1;
  if (name == "DualPipe") return P + 1;
  if (name == "Chimera") return std::min(M, P) / 2 + std::min({M / 2, r + 1, P - r});
  ADD_FAILURE() << "no formula for " << name;
  return -1;
}

// The bound on the peak, for schedules whose paper states only a bound; otherwise 0.
int peak_bound(std::string_view name, const Shape& shape) {
  const int P = shape.ranks;
  if (name == "V-Half") return 2 * ((P + 2) / 2);
  if (name == "V-Min") return 2 * ((P + 4) / 3);
  if (name == "1F1B-V") return 2 * ((2 * P + 3) / 3);
  // Half activations, all of which may be from I to W.
  if (name == "V-Adaptive") return 2 * ((P + 2) / 2);
  if (name == "ZB-1p") return 2 * P;
  if (name == "ZB-2p") return 4 * P;
  return 0;
}

// Executes all ranks: an action runs once everything that it needs has been produced. Returns
// whether every rank reaches its end.
bool can_run(const ir::ComputeOrder& order) {
  const auto index = [&](int stage, int microbatch) {
    return static_cast<size_t>(stage) * static_cast<size_t>(order.num_microbatches) +
           static_cast<size_t>(microbatch);
  };
  const size_t cells = index(order.placement.num_stages(), 0);
  std::map<ir::Result, std::vector<bool>> made;
  for (const ir::Result result :
       {ir::Result::kOutput, ir::Result::kInputGradient, ir::Result::kWeightInput})
    made[result].resize(cells);
  std::vector<size_t> next(order.rows.size());
  for (bool progress = true; progress;) {
    progress = false;
    for (size_t rank = 0; rank < order.rows.size(); ++rank) {
      for (const ir::Row& row = order.rows[rank]; next[rank] < row.size(); ++next[rank]) {
        const ir::Action action = row[next[rank]];
        bool ready = true;
        for (const ir::ActionPart part : action.parts()) {
          for (const ir::Need& need : ir::needs_of(part, order.placement))
            ready = ready && made[need.result][index(need.stage, need.microbatch)];
        }
        if (!ready) break;
        for (const ir::ActionPart part : action.parts()) {
          for (auto& [result, bits] : made) {
            if (ir::makes(part.kind(), result)) bits[index(part.stage(), part.microbatch())] = true;
          }
        }
        progress = true;
      }
    }
  }
  for (size_t rank = 0; rank < order.rows.size(); ++rank) {
    if (next[rank] != order.rows[rank].size()) return false;
  }
  return true;
}

// Expects that each stage and microbatch has one F, and one B or one I and one W, on the rank of
// the stage.
void expect_complete(const ir::ComputeOrder& order) {
  std::map<std::pair<int, int>, std::map<ir::ActionKind, int>> count;
  for (size_t rank = 0; rank < order.rows.size(); ++rank) {
    for (const ir::Action& action : order.rows[rank]) {
      for (const ir::ActionPart part : action.parts()) {
        ASSERT_EQ(order.placement.rank_of(part.stage(), part.microbatch()), static_cast<int>(rank));
        ++count[{part.stage(), part.microbatch()}][part.kind()];
      }
    }
  }
  ASSERT_EQ(count.size(), static_cast<size_t>(order.placement.num_stages()) *
                              static_cast<size_t>(order.num_microbatches));
  using K = ir::ActionKind;
  for (const auto& [cell, kinds] : count) {
    const bool whole = kinds == std::map<K, int>{{K::kForward, 1}, {K::kBackward, 1}};
    const bool split =
        kinds ==
        std::map<K, int>{{K::kForward, 1}, {K::kBackwardInput, 1}, {K::kBackwardWeight, 1}};
    ASSERT_TRUE(whole || split) << "stage " << cell.first << " microbatch " << cell.second;
  }
}

// peaks_box_test is this file with the full range of shapes.
#ifdef PIPEWRIGHT_WHOLE_BOX
constexpr int kMostRanks = 16, kMostStagesARank = 4;
std::vector<int> microbatch_counts() {
  std::vector<int> counts(64);
  std::iota(counts.begin(), counts.end(), 1);
  return counts;
}
#else
constexpr int kMostRanks = 8, kMostStagesARank = 3;
std::vector<int> microbatch_counts() { return {1, 2, 3, 4, 5, 7, 8, 10, 12, 16, 21, 32}; }
#endif

TEST(PeaksTest, EveryOrderIsCompleteAndRunsWithItsPeak) {
  int orders = 0;
  for (const ScheduleSpec* spec : all_schedules()) {
    for (int ranks = 1; ranks <= kMostRanks; ++ranks) {
      for (int per_rank = 1; per_rank <= kMostStagesARank; ++per_rank) {
        for (const int microbatches : microbatch_counts()) {
          const Shape shape{ranks, ranks * per_rank, microbatches};
          if (shape_error(*spec, shape)) continue;
          SCOPED_TRACE(testing::Message() << spec->name << " P=" << ranks << " S=" << shape.stages
                                          << " M=" << microbatches);
          const ir::ComputeOrder order = make_order(*spec, shape);
          expect_complete(order);
          EXPECT_TRUE(can_run(order));
          for (int rank = 0; rank < ranks; ++rank) {
            if (const int most = peak_bound(spec->name, shape); most > 0) {
              ASSERT_LE(peak_of(order.rows[static_cast<size_t>(rank)]), most) << "rank " << rank;
              continue;
            }
            ASSERT_EQ(peak_of(order.rows[static_cast<size_t>(rank)]),
                      expected_peak(spec->name, shape, rank))
                << "rank " << rank;
          }
          ++orders;
        }
      }
    }
  }
  EXPECT_GT(orders, 900);
}

// The reference implementation's values for P=4, M=8 and P=8, M=16.
TEST(PeaksTest, OneFOneBV) {
  for (const Shape& shape : {Shape{4, 8, 8}, Shape{8, 16, 16}}) {
    for (const ir::Row& row : make_order(*find_schedule("1F1B-V"), shape).rows)
      EXPECT_EQ(peak_of(row), shape.ranks == 4 ? 6 : 12);
  }
}

// Megatron-LM's options: any group size of at least P, whole groups or not, and an extra warm-up
// forward.
TEST(PeaksTest, InterleavedWithGroupsAndExtraWarmup) {
  int orders = 0;
  const ScheduleSpec& spec = *find_schedule("Interleaved1F1B");
  for (const int ranks : {1, 2, 3, 4, 8}) {
    for (const int per_rank : {1, 2, 3}) {
      for (const int microbatches : {1, 3, 4, 8, 11, 12, 16, 21, 24}) {
        for (const int group : {1, 2, 3, 4, 5, 8, 16, 32, 1 << 30}) {
          for (const bool extra : {false, true}) {
            const Shape shape{ranks, ranks * per_rank, microbatches, group, extra};
            if (shape_error(spec, shape)) continue;
            SCOPED_TRACE(testing::Message() << "P=" << ranks << " V=" << per_rank
                                            << " M=" << microbatches << " g=" << group);
            const ir::ComputeOrder order = make_order(spec, shape);
            expect_complete(order);
            EXPECT_TRUE(can_run(order));
            for (int rank = 0; rank < ranks; ++rank) {
              EXPECT_EQ(peak_of(order.rows[static_cast<size_t>(rank)]),
                        std::min(per_rank * microbatches, (per_rank - 1) * std::min(group, 1000) +
                                                              2 * (ranks - 1 - rank) + 1 + extra));
            }
            ++orders;
          }
        }
      }
    }
  }
  EXPECT_GT(orders, 500);
}

// The peak in half activations: F takes two, I and W free one each.
int peak_in_halves(const ir::Row& row) {
  int halves = 0, peak = 0;
  for (const ir::Action& action : row) {
    halves += action.kind() == ir::ActionKind::kForward ? 2 : -1;
    peak = std::max(peak, halves);
  }
  EXPECT_EQ(halves, 0);
  return peak;
}

// Whatever the times, the plans are complete, run to their end and keep to their limit.
TEST(PeaksTest, ZbAutoKeepsItsMemoryLimitAtAnyTimes) {
  std::mt19937 random(1);
  const auto draw = [&](unsigned most) { return static_cast<int64_t>(random() % (most + 1)); };
  int at_limit = 0;
  for (int instance = 0; instance < 300; ++instance) {
    const int ranks = 1 + static_cast<int>(draw(7)), microbatches = 1 + static_cast<int>(draw(30));
    const Shape shape{ranks, ranks, microbatches};
    std::vector<StageTimes> times;
    for (int rank = 0; rank < ranks; ++rank)
      times.push_back({draw(20), draw(20), draw(20), draw(9), draw(9)});
    for (const auto& [name, limit] : {std::pair("ZB-1p", 2 * ranks), {"ZB-2p", 4 * ranks}}) {
      SCOPED_TRACE(testing::Message() << name << " instance " << instance);
      const ir::ComputeOrder order = make_order(*find_schedule(name), shape, {times});
      expect_complete(order);
      EXPECT_TRUE(can_run(order));
      for (const ir::Row& row : order.rows) {
        EXPECT_LE(peak_in_halves(row), limit);
        at_limit += peak_in_halves(row) == limit;
      }
    }
  }
  EXPECT_GT(at_limit, 300);
}

// The limit is kept, whatever the times; a limit below V-Min's memory is refused.
TEST(PeaksTest, VAdaptiveKeepsItsMemoryLimit) {
  const ScheduleSpec& spec = *find_schedule("V-Adaptive");
  const StageTimes uneven{9, 8, 4, 1, 1};
  for (const int ranks : {1, 2, 3, 4, 6, 8}) {
    for (int memory = 2 * ((ranks + 4) / 3); memory <= 2 * ranks + 1; ++memory) {
      Shape shape{ranks, 2 * ranks, 3 * ranks};
      shape.memory = memory / 2.0;
      for (const auto& times :
           {std::vector<StageTimes>(), std::vector<StageTimes>(2 * ranks, uneven)}) {
        SCOPED_TRACE(testing::Message() << "P=" << ranks << " memory " << memory);
        const ir::ComputeOrder order = make_order(spec, shape, {times});
        expect_complete(order);
        EXPECT_TRUE(can_run(order));
        for (const ir::Row& row : order.rows) EXPECT_LE(peak_of(row), memory);
      }
    }
  }
  Shape shape{8, 16, 24};
  shape.memory = 3.5;
  EXPECT_TRUE(shape_error(spec, shape));
}

// Single rows for a large cluster: the whole order would have 134 million actions.
TEST(PeaksTest, OneRankOfALargeCluster) {
  for (const char* name : {"LoopedBFS", "Interleaved1F1B", "ZBVZeroBubble", "DualPipeV"}) {
    const ScheduleSpec& spec = *find_schedule(name);
    const Shape shape{4096, 8192, 8192};
    for (const int rank : {0, 1, 2047, 4095})
      EXPECT_EQ(peak_of(make_row(spec, shape, rank)), expected_peak(name, shape, rank)) << name;
  }
}

}  // namespace
}  // namespace pipewright::schedules
