// A building block (building_block.h) of the family is given by its slots on rank 0 modulo 6 and by
// the offsets between neighbouring ranks. Passes away from rank 0 (F of the first stage, I of the
// second) take d slots per rank, d from 1 to 5, with another d from some rank on (of at most eight
// that are tried); passes towards rank 0 take one. The passes of a microbatch follow each other as
// closely as their slots modulo 6 allow. Blocks of which two actions of a rank share a slot modulo
// 6 are dropped.
//
// Every other block that the limit leaves room for is repeated for at most 2P microbatches and run
// at the given times; what exceeds the limit is dropped. The best few are generated in full, and
// the best of these is the result. V-Min is in the family, so a limit of its memory is always met.
#include "pipewright/schedules/v_adaptive.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "pipewright/ir/check.h"
#include "pipewright/schedules/building_block.h"
#include "pipewright/schedules/constraints.h"
#include "pipewright/schedules/plan_cost.h"
#include "pipewright/schedules/v_min.h"

namespace pipewright::schedules {
namespace {

using Block = std::vector<BlockSlots>;

constexpr int kPeriod = 6;
constexpr int kMostRanks = 32;
constexpr size_t kFullLength = 8;            // blocks that are generated in full
constexpr int64_t kMostActions = 2'000'000;  // of the brief schedules of all blocks

// The least slot from `earliest` on that is `residue` modulo 6.
int slot_from(int earliest, int residue) {
  return earliest + ((residue - earliest) % kPeriod + kPeriod) % kPeriod;
}

// The block with these slots modulo 6 on rank 0, after F in slot 0, and these offsets: nullopt if
// two actions of a rank share a slot modulo 6.
std::optional<Block> block_of(int ranks, const std::array<int, 3>& residues, int first_offset,
                              int second_offset, int first_ranks) {
  const auto down = [&](int rank) {
    const int first = std::min(rank, first_ranks);
    return first * first_offset + (rank - first) * second_offset;
  };
  const int way_back = down(ranks - 1) + 1 + (ranks - 1);  // from rank 0 to the last one and back
  const int forward_up = slot_from(way_back, residues[0]);
  const int backward_down = slot_from(forward_up + 1, residues[1]);
  const int backward_up = slot_from(backward_down + way_back, residues[2]);
  Block block;
  for (int rank = 0; rank < ranks; ++rank) {
    const BlockSlots slots = {down(rank), forward_up - rank, backward_down + down(rank),
                              backward_up - rank};
    unsigned used = 0;
    for (const int slot :
         {slots.forward_down, slots.forward_up, slots.backward_down, slots.backward_up}) {
      const unsigned bit = 1u << static_cast<unsigned>(slot % kPeriod);
      if ((used & bit) != 0) return std::nullopt;
      used |= bit;
    }
    block.push_back(slots);
  }
  return block;
}

// How many activations a repeated block keeps alive on average: each lives from its F to the end of
// its W, at least one slot after its I, and a new one of each stage starts every period.
int average_live(const Block& block) {
  int most = 0;
  for (const BlockSlots& slots : block) {
    const int lifetimes =
        slots.backward_up + 2 - slots.forward_down + slots.backward_down + 2 - slots.forward_up;
    most = std::max(most, lifetimes / kPeriod);
  }
  return most;
}

// The blocks of the family for this many ranks, without those that need more than `limit`.
std::vector<Block> family(int ranks, int limit) {
  std::vector<Block> blocks;
  const auto add = [&](int first_offset, int second_offset, int first_ranks) {
    for (int f = 1; f < kPeriod; ++f)
      for (int b = 1; b < kPeriod; ++b)
        for (int i = 1; i < kPeriod; ++i) {
          if (f == b || b == i || f == i) continue;
          auto block = block_of(ranks, {f, b, i}, first_offset, second_offset, first_ranks);
          if (block && average_live(*block) <= limit) blocks.push_back(std::move(*block));
        }
  };
  const int step = (ranks + 7) / 8;  // at most eight places to change the offset
  for (int first = 1; first < kPeriod; ++first) {
    add(first, first, ranks);
    for (int second = 1; second < kPeriod; ++second) {
      for (int first_ranks = 1; first != second && first_ranks + 1 < ranks; first_ranks += step)
        add(first, second, first_ranks);
    }
  }
  return blocks;
}

// The most live activations of any rank.
int peak_of(const ir::Rows& rows) {
  int peak = 0;
  for (const ir::Row& row : rows) {
    int live = 0;
    for (const ir::Action& action : row) {
      live += action.kind() == ir::ActionKind::kForward;
      peak = std::max(peak, live);
      live -= action.kind() == ir::ActionKind::kBackwardWeight;
    }
  }
  return peak;
}

struct Result {
  bool exceeds_limit;
  int64_t cost;
  size_t block;

  friend auto operator<=>(const Result&, const Result&) = default;
};

// The most live activations that fit, each of one stage.
int limit_of(const Shape& shape) {
  if (shape.memory == 0) return 2 * ((shape.ranks + 2) / 2);
  // 2.4999999999999996 means 2.5.
  return static_cast<int>(std::clamp(std::floor(2 * shape.memory * (1 + 1e-12)), 0.0, 1e9));
}

ir::Rows plan_rows(const Shape& shape, const PlanTimes& times) {
  const int limit = limit_of(shape);
  Shape brief = shape;
  brief.microbatches = std::min(shape.microbatches, 2 * shape.ranks);
  std::vector<Block> blocks = family(shape.ranks, limit);
  // Blocks that use much of the memory first.
  std::ranges::stable_sort(blocks, std::greater(), average_live);
  const int64_t size = int64_t{3} * brief.stages * brief.microbatches;
  blocks.resize(std::min(blocks.size(), static_cast<size_t>(kMostActions / size) + kFullLength));
  blocks.push_back(v_min_block(shape.ranks));
  const auto result_of = [&](const Shape& of, size_t block) {
    const ir::Rows rows = repeat_block(of, blocks[block], true, limit);
    return Result{peak_of(rows) > limit,
                  plan_cost(ir::Placement::v(of.ranks, of.stages), of.microbatches, times, rows),
                  block};
  };
  std::vector<Result> results;
  for (size_t block = 0; block < blocks.size(); ++block) {
    results.push_back(result_of(brief, block));
  }
  std::ranges::sort(results);
  // In full, a block may need more memory than in brief.
  std::optional<Result> best;
  size_t fitting = 0;
  for (auto next = results.begin(); next != results.end() && fitting < kFullLength; ++next) {
    const Result full = result_of(shape, next->block);
    if (full.exceeds_limit) continue;
    ++fitting;
    if (!best || full < *best) best = full;
  }
  PW_CHECK(best, "V-Min keeps to the least limit");
  return repeat_block(shape, blocks[best->block], true, limit);
}

constexpr Constraint kConstraints[] = {
    kTwoStagesARank,
    {"ranks <= 32", "only few of the building blocks for more ranks can be tried",
     [](const Shape& shape) { return shape.ranks <= kMostRanks; }},
    {"memory >= (ranks + 4) div 3",
     "V-Min needs that much, the building block with the least memory",
     [](const Shape& shape) { return limit_of(shape) >= 2 * ((shape.ranks + 4) / 3); }},
};

}  // namespace

const ScheduleSpec kVAdaptive = {
    .name = "V-Adaptive",
    .aliases = {},
    .source = "arXiv 2405.15362",
    .pattern = Pattern::kV,
    .default_stages_per_rank = 2,
    .splits_backward = true,
    .bubble = "planned for the given times and memory",
    .memory = "at most 2K for --memory K; default 2((P+2) div 2)",
    .constraints = kConstraints,
    .options = kMemoryOption,
    .plan_rows = plan_rows,
};

}  // namespace pipewright::schedules
