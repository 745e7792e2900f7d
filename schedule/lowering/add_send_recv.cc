// The ranks take turns of one action each, in rounds, ascending by rank; this determines the
// global order of the transfers. A rank whose next action lacks a result of another stage goes to
// sleep, and any transfer to it wakes it, possibly later in the same round. `awake_`
// has one bit per rank, so that a round costs only the ranks that can run, and finding the next
// one is one instruction per 64 ranks.
//
// The invariant: a rank that is asleep cannot run its next action. The pass ends when no rank runs
// in a round; ranks with actions left cannot run. Linear in the number of actions and idle slots;
// each round also scans one word per 64 ranks.
//
// A row is rewritten in place, since fresh memory costs more than all the rest. It first grows by
// the transfers that it will have, and its actions move to its end. They are read there and written
// at its beginning, with the transfers among them. What is still to be written after the actions
// that are still to be read are transfers only, so nothing is overwritten before it is read.
#include "pipewright/schedule/lowering/add_send_recv.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <utility>
#include <vector>

#include "pipewright/ir/dependencies.h"
#include "pipewright/ir/tables.h"
#include "pipewright/ir/walk.h"

namespace pipewright::schedule {
namespace {

template <typename Instances>
class SendRecvPass {
 public:
  SendRecvPass(ir::Program program, const Instances& instances)
      : program_(std::move(program)),
        instances_(instances),
        made_(program_.placement, program_.num_microbatches),
        awake_((program_.rows.size() + kBits - 1) / kBits) {
    find_passings();
    make_room();
  }

  std::optional<ir::Program> run() {
    for (size_t rank = 0; rank < turns_.size(); ++rank) {
      if (turns_[rank].next != turns_[rank].end) wake(rank);
    }
    while (take_turns()) {
    }
    for (size_t rank = 0; rank < turns_.size(); ++rank) {
      const Turn& turn = turns_[rank];
      if (turn.next != turn.end) return std::nullopt;
      ir::Row& row = program_.rows[rank];
      row.resize(static_cast<size_t>(turn.written - row.data()));  // idle slots are dropped
    }
    program_.lowering.receives = ir::Receives::kPytorch;
    return std::move(program_);
  }

 private:
  // Where a rank is in its row.
  struct Turn {
    const ir::Action* next;  // to read
    const ir::Action* end;
    ir::Action* written;  // the end of what is written
  };
  // How an instance of a stage passes outputs on, in F, or gradients back, in B and I: the same for
  // every microbatch of it.
  struct Passing {
    int from_stage = kNone;        // whose result the compute uses
    int to_rank = kNone;           // that receives its own result; kNone if no other rank does
    ir::ActionPart send, receive;  // of its first microbatch
  };
  enum Direction : uint8_t { kForward, kBackward, kNeither };
  static constexpr size_t kBits = 64;
  static constexpr int kNone = -1;

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

  static Direction direction_of(ir::ActionKind kind) {
    if (kind == ir::ActionKind::kForward) return kForward;
    return ir::gives_input_gradient(kind) ? kBackward : kNeither;
  }
  const Passing& passing(ir::ActionPart part, size_t rank, Direction direction) const {
    const int instance = instances_.on(rank, part);
    return passings_[2 * static_cast<size_t>(instance) + direction];
  }

  void find_passings() {
    const ir::Placement& placement = program_.placement;
    for (int instance = 0; instance < placement.num_instances(); ++instance) {
      for (const ir::ActionKind kind : {ir::ActionKind::kForward, ir::ActionKind::kBackwardInput}) {
        const ir::ActionPart part = ir::part_of(kind, instance, placement);
        Passing& passing = passings_.emplace_back();
        for (const ir::Need& need : ir::needs_of(part, placement)) {
          if (need.stage != part.stage()) passing.from_stage = need.stage;
        }
        if (const auto transfer = ir::transfer_of(part, placement))
          passing = {passing.from_stage, transfer->to, transfer->send, transfer->receive};
      }
    }
  }

  // Each row grows by its transfers, and its actions move to its end.
  void make_room() {
    std::vector<size_t> transfers(program_.rows.size());
    for (size_t rank = 0; rank < transfers.size(); ++rank) {
      for (const ir::Action& action : program_.rows[rank]) {
        for (const ir::ActionPart part : action.parts()) {
          const Direction direction = direction_of(part.kind());
          if (direction == kNeither) continue;
          const int to = passing(part, rank, direction).to_rank;
          if (to == kNone) continue;
          ++transfers[rank];
          ++transfers[static_cast<size_t>(to)];
        }
      }
    }
    for (size_t rank = 0; rank < transfers.size(); ++rank) {
      ir::Row& row = program_.rows[rank];
      const size_t actions = row.size();
      const size_t size = actions + transfers[rank];
      row.resize(size);
      const ir::Action* moved =
          std::move_backward(row.data(), row.data() + actions, row.data() + row.size());
      turns_.push_back({moved, row.data() + row.size(), row.data()});
    }
  }

  // Whether the result that a part needs from another stage exists. Results of its own stage follow
  // from the order of its row.
  bool is_ready(ir::ActionPart part, size_t rank) const {
    const Direction direction = direction_of(part.kind());
    if (direction == kNeither) return true;
    const int from = passing(part, rank, direction).from_stage;
    return from == kNone || (made_.at(from, part.microbatch()) & 1u << direction) != 0;
  }

  // `action` is a copy: its place in the row may be written to.
  bool take(ir::Action action, size_t rank) {
    for (const ir::ActionPart part : action.parts()) {
      if (!is_ready(part, rank)) return false;
    }
    if (!action.is_idle()) write(action, &turns_[rank]);
    for (const ir::ActionPart part : action.parts()) {
      const Direction direction = direction_of(part.kind());
      if (direction == kNeither) continue;
      uint8_t& made = made_.at(part.stage(), part.microbatch());
      made = static_cast<uint8_t>(made | 1u << direction);
      const Passing& pass = passing(part, rank, direction);
      if (pass.to_rank == kNone) continue;
      const auto to = static_cast<size_t>(pass.to_rank);
      write(with_microbatch(pass.send, part.microbatch()), &turns_[rank]);
      write(with_microbatch(pass.receive, part.microbatch()), &turns_[to]);
      if (turns_[to].next != turns_[to].end) wake(to);
    }
    return true;
  }
  static ir::Action with_microbatch(ir::ActionPart part, int microbatch) {
    return {part.kind(), part.stage(), microbatch};
  }
  static void write(const ir::Action& action, Turn* turn) { *turn->written++ = action; }

  ir::Program program_;
  const Instances instances_;
  std::vector<Passing> passings_;           // by instance and direction
  ir::StageMicrobatchTable<uint8_t> made_;  // one bit per direction
  std::vector<Turn> turns_;                 // by rank
  std::vector<uint64_t> awake_;             // one bit per rank
};

}  // namespace

std::optional<ir::Program> add_send_recv(ir::Program program) {
  const ir::Placement placement = program.placement;  // which the pass does not move
  return ir::with_instances(placement, [&](const auto& instances) {
    return SendRecvPass(std::move(program), instances).run();
  });
}

}  // namespace pipewright::schedule
