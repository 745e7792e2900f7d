// The ranks take turns of one action each, in rounds, ascending by rank; this determines the
// global order of the transfers. A rank whose next action lacks a result of another stage goes to
// sleep, and any transfer to it wakes it, possibly later in the same round. `awake_`
// has one bit per rank, so that a round costs only the ranks that can run, and finding the next
// one is one instruction per 64 ranks.
//
// The invariant: a rank that is asleep cannot run its next action. The pass ends when no rank runs
// in a round; ranks with actions left cannot run. Linear in the number of actions and idle slots;
// each round also scans one word per 64 ranks.
#include "pipewright/schedule/lowering/add_send_recv.h"

#include <bit>
#include <cstdint>
#include <utility>
#include <vector>

#include "pipewright/ir/dependencies.h"
#include "pipewright/ir/stage_dependencies.h"
#include "pipewright/ir/stage_microbatch_table.h"

namespace pipewright::schedule {
namespace {

class SendRecvPass {
 public:
  explicit SendRecvPass(ir::Program program)
      : program_(std::move(program)),
        dependencies_(program_.placement),
        made_(program_.placement, program_.num_microbatches),
        awake_((program_.rows.size() + kBits - 1) / kBits) {
    reserve();
  }

  std::optional<ir::Program> run() {
    for (size_t rank = 0; rank < program_.rows.size(); ++rank) {
      const ir::Row& row = program_.rows[rank];
      turns_.push_back({row.data(), row.data() + row.size()});
      if (!row.empty()) wake(rank);
    }
    while (take_turns()) {
    }
    for (const Turn& turn : turns_) {
      if (turn.next != turn.end) return std::nullopt;
    }
    program_.rows = std::move(built_);
    program_.lowering.receives = ir::Receives::kPytorch;
    return std::move(program_);
  }

 private:
  struct Turn {
    const ir::Action* next;
    const ir::Action* end;
  };
  static constexpr size_t kBits = 64;

  void wake(size_t rank) { awake_[rank / kBits] |= uint64_t{1} << rank % kBits; }

  // One round. False if no rank could run anything.
  bool take_turns() {
    bool progress = false;
    for (size_t word = 0; word < awake_.size(); ++word) {
      uint64_t still_to_come = ~uint64_t{0};
      while (const uint64_t bits = awake_[word] & still_to_come) {
        const auto bit = static_cast<size_t>(std::countr_zero(bits));
        still_to_come = bit + 1 == kBits ? 0 : ~uint64_t{0} << (bit + 1);
        const size_t rank = word * kBits + bit;
        Turn& turn = turns_[rank];
        const bool taken = take(*turn.next, rank);
        progress = progress || taken;
        if (!taken || ++turn.next == turn.end) awake_[word] &= ~(uint64_t{1} << bit);
      }
    }
    return progress;
  }

  // Reserves the final size of each row, so that none is copied as it grows.
  void reserve() {
    std::vector<size_t> sizes(program_.rows.size());
    for (size_t rank = 0; rank < sizes.size(); ++rank) {
      for (const ir::Action& action : program_.rows[rank]) {
        sizes[rank] += !action.is_idle();
        for (const ir::ActionPart part : action.parts()) {
          const auto& transfer = dependencies_.of(part).transfer;
          if (!transfer) continue;
          ++sizes[rank];
          ++sizes[static_cast<size_t>(transfer->to)];
        }
      }
    }
    built_.resize(sizes.size());
    for (size_t rank = 0; rank < sizes.size(); ++rank) built_[rank].reserve(sizes[rank]);
  }

  // Whether the results that a part needs from other stages exist. Results of its own stage follow
  // from the order of its row.
  bool is_ready(ir::ActionPart part) {
    for (const ir::StageDependencies::Need& need : dependencies_.of(part)) {
      if (need.stage != part.stage() &&
          (made_.at(need.stage, part.microbatch()) & bit(need.result)) == 0)
        return false;
    }
    return true;
  }
  static uint8_t bit(ir::Result result) {
    return static_cast<uint8_t>(1u << static_cast<uint32_t>(result));
  }

  bool take(const ir::Action& action, size_t rank) {
    for (const ir::ActionPart part : action.parts()) {
      if (!is_ready(part)) return false;
    }
    if (!action.is_idle()) built_[rank].push_back(action);
    for (const ir::ActionPart part : action.parts()) {
      if (part.kind() == ir::ActionKind::kForward) {
        made_.at(part.stage(), part.microbatch()) |= bit(ir::Result::kOutput);
      } else if (ir::gives_input_gradient(part.kind())) {
        made_.at(part.stage(), part.microbatch()) |= bit(ir::Result::kInputGradient);
      }
      const auto& transfer = dependencies_.of(part).transfer;
      if (!transfer) continue;
      const auto post = [&](size_t on, ir::ActionPart end) {
        built_[on].emplace_back(end.kind(), end.stage(), part.microbatch());
      };
      const auto to = static_cast<size_t>(transfer->to);
      post(rank, transfer->send);
      post(to, transfer->receive);
      if (turns_[to].next != turns_[to].end) wake(to);
    }
    return true;
  }

  ir::Program program_;
  ir::StageDependencies dependencies_;
  ir::StageMicrobatchTable<uint8_t> made_;  // one bit per Result
  ir::Rows built_;
  std::vector<Turn> turns_;      // by rank
  std::vector<uint64_t> awake_;  // one bit per rank
};

}  // namespace

std::optional<ir::Program> add_send_recv(ir::Program program) {
  return SendRecvPass(std::move(program)).run();
}

}  // namespace pipewright::schedule
