// From one building block to a schedule, in three passes over time slots:
//
//   repeat   Copy the block for each microbatch m, shifted by 6 m slots. With split backwards,
//            put each W into the first free slot after its I. This is periodic and correct, but
//            slow at the start and the end, where most slots are free. Count the live activations
//            per rank and slot; their peak, or the given limit if that is more, is the memory limit
//            of the rank from here on.
//   pull     Go through the actions in the order of time and move each one to the earliest free
//            slot at which its needs are met. An F makes its activation live longer, so it moves
//            back only over slots whose count is below the limit.
//   fill     With split backwards: keep each rank's order of F and I from `pull`, run it slot by
//            slot, and run the oldest pending W when the next F or I is not ready or the limit
//            leaves no room for the next F.
//
// Invariants: after every pass each action comes after its needs, and no rank exceeds its limit.
// Time is linear in the number of actions: `repeat` and `fill` visit each slot once, and in `pull`
// only actions near the start and the end move, because the steady state has no free slots (six
// slots of work in a period of six).

#include "pipewright/schedules/building_block.h"

#include <algorithm>
#include <array>
#include <deque>
#include <utility>

#include "pipewright/ir/check.h"
#include "pipewright/ir/dependencies.h"
#include "pipewright/ir/tables.h"

namespace pipewright::schedules {
namespace {

using ir::ActionKind;
using ir::ActionPart;

constexpr int kPeriod = 6;
constexpr int kNotDone = -1;
constexpr std::array kNothingDone = {kNotDone, kNotDone, kNotDone};

// An action with its first time slot.
struct Placed {
  int slot;
  int rank;
  ActionPart action;
};

class BlockSchedule {
 public:
  BlockSchedule(const Shape& shape, const std::vector<BlockSlots>& block, bool splits_backward,
                int memory)
      : num_ranks_(shape.ranks),
        num_microbatches_(shape.microbatches),
        splits_backward_(splits_backward),
        placement_(ir::Placement::v(shape.ranks, shape.stages)),
        done_(placement_, shape.microbatches, kNothingDone) {
    repeat(block);
    for (RankSlots& slots : slots_) slots.most = std::max(slots.most, memory);
  }

  ir::Rows run() {
    pull();
    return splits_backward_ ? fill() : rows();
  }

 private:
  // The time slots of one rank.
  struct RankSlots {
    std::vector<bool> used;  // by slot
    std::vector<int> live;   // live activations, by slot
    int most = 0;            // the limit for pull() and fill(): at least the peak after repeat()
  };

  int length(ActionKind kind) const { return kind == ActionKind::kBackward ? 2 : 1; }
  ActionKind backward() const {
    return splits_backward_ ? ActionKind::kBackwardInput : ActionKind::kBackward;
  }

  // The first slot after the action that produces a result; kNotDone until that action is placed.
  int& done(ir::Result result, int stage, int microbatch) {
    return done_.at(stage, microbatch)[static_cast<size_t>(result)];
  }
  void finish(ActionPart action, int end) {
    for (const ir::Result result :
         {ir::Result::kOutput, ir::Result::kInputGradient, ir::Result::kWeightInput}) {
      if (ir::makes(action.kind(), result)) done(result, action.stage(), action.microbatch()) = end;
    }
  }
  // The first slot at which all needs of an action are met; kNotDone if a producer is not placed
  // yet.
  int ready(ActionPart action) {
    int slot = 0;
    for (const ir::Need& need : ir::needs_of(action, placement_)) {
      const int end = done(need.result, need.stage, need.microbatch);
      if (end == kNotDone) return kNotDone;
      slot = std::max(slot, end);
    }
    return slot;
  }

  void repeat(const std::vector<BlockSlots>& block) {
    for (int rank = 0; rank < num_ranks_; ++rank) {
      const BlockSlots& slots = block[static_cast<size_t>(rank)];
      const int down = rank, up = 2 * num_ranks_ - 1 - rank;
      std::vector<Placed> own;
      for (int microbatch = 0; microbatch < num_microbatches_; ++microbatch) {
        const int shift = kPeriod * microbatch;
        const auto place = [&](int slot, ActionKind kind, int stage) {
          own.push_back({slot + shift, rank, ActionPart(kind, stage, microbatch)});
        };
        place(slots.forward_down, ActionKind::kForward, down);
        place(slots.forward_up, ActionKind::kForward, up);
        place(slots.backward_down, backward(), up);
        place(slots.backward_up, backward(), down);
      }
      std::ranges::sort(own, {}, &Placed::slot);
      if (splits_backward_) place_weights(&own);
      count_slots(own);
      placed_.insert(placed_.end(), own.begin(), own.end());
    }
    std::ranges::sort(placed_, {}, [](const Placed& one) { return std::pair(one.slot, one.rank); });
  }

  // Puts each W into the first free slot after its I.
  void place_weights(std::vector<Placed>* own) const {
    std::vector<bool> used(static_cast<size_t>(own->back().slot) + 2);
    for (const Placed& one : *own) used[static_cast<size_t>(one.slot)] = true;
    size_t free = 0;
    const size_t size = own->size();
    for (size_t index = 0; index < size; ++index) {
      const Placed one = (*own)[index];
      if (one.action.kind() != ActionKind::kBackwardInput) continue;
      free = std::max(free, static_cast<size_t>(one.slot) + 1);
      while (free < used.size() && used[free]) ++free;
      own->push_back(
          {static_cast<int>(free++), one.rank,
           ActionPart(ActionKind::kBackwardWeight, one.action.stage(), one.action.microbatch())});
    }
    std::ranges::sort(*own, {}, &Placed::slot);
  }

  void count_slots(const std::vector<Placed>& own) {
    RankSlots slots;
    const size_t size = static_cast<size_t>(own.back().slot) + 3;
    slots.used.resize(size);
    slots.live.resize(size);
    int live = 0;
    size_t counted = 0;  // slots whose `live` is set
    const auto count_to = [&](size_t slot) {
      while (counted < slot) slots.live[counted++] = live;
    };
    for (const Placed& one : own) {
      const auto slot = static_cast<size_t>(one.slot);
      const auto end = slot + static_cast<size_t>(length(one.action.kind()));
      for (size_t at = slot; at < end; ++at) slots.used[at] = true;
      if (one.action.kind() == ActionKind::kForward) {
        count_to(slot);
        slots.most = std::max(slots.most, ++live);
      }
      if (ir::completes_backward(one.action.kind())) {
        count_to(end);
        --live;
      }
    }
    count_to(size);
    slots_.push_back(std::move(slots));
  }

  void pull() {
    for (Placed& one : placed_) {
      RankSlots& slots = slots_[static_cast<size_t>(one.rank)];
      const int size = length(one.action.kind());
      const auto set = [&](int slot, bool used) {
        for (int at = slot; at < slot + size; ++at) slots.used[static_cast<size_t>(at)] = used;
      };
      const int earliest = ready(one.action);
      PW_CHECK(earliest != kNotDone && earliest <= one.slot,
               "a building block violates a data dependency");
      set(one.slot, false);
      int slot = one.slot;
      if (one.action.kind() == ActionKind::kForward) {
        // Its activation lives longer: move back only while that stays below the limit.
        for (int at = one.slot - 1;
             at >= earliest && slots.live[static_cast<size_t>(at)] < slots.most; --at) {
          if (!slots.used[static_cast<size_t>(at)]) slot = at;
        }
        for (int at = slot; at < one.slot; ++at) ++slots.live[static_cast<size_t>(at)];
      } else {
        const auto is_free = [&](int first) {
          for (int at = first; at < first + size; ++at) {
            if (slots.used[static_cast<size_t>(at)]) return false;
          }
          return true;
        };
        slot = earliest;
        while (slot < one.slot && !is_free(slot)) ++slot;
        if (ir::completes_backward(one.action.kind())) {
          for (int at = slot + size; at < one.slot + size; ++at)
            --slots.live[static_cast<size_t>(at)];
        }
      }
      set(slot, true);
      one.slot = slot;
      finish(one.action, slot + size);
    }
    std::ranges::sort(placed_, {}, [](const Placed& one) { return std::pair(one.slot, one.rank); });
  }

  ir::Rows rows() const {
    ir::Rows rows(static_cast<size_t>(num_ranks_));
    for (const Placed& one : placed_) rows[static_cast<size_t>(one.rank)].push_back(one.action);
    return rows;
  }

  // Slot by slot, runs the next F or I of each rank if it is ready, otherwise the rank's oldest W.
  ir::Rows fill() {
    ir::Rows order(static_cast<size_t>(num_ranks_)), filled(order);
    for (const Placed& one : placed_) {
      if (one.action.kind() != ActionKind::kBackwardWeight)
        order[static_cast<size_t>(one.rank)].push_back(one.action);
    }
    done_ = {placement_, num_microbatches_, kNothingDone};
    struct State {
      size_t next = 0;
      int live = 0;
      std::deque<ActionPart> weights;  // pending Ws, oldest first
    };
    std::vector<State> states(static_cast<size_t>(num_ranks_));
    size_t left = placed_.size();
    std::vector<ActionPart> ran;
    for (int slot = 0; left > 0; ++slot) {
      ran.clear();
      for (size_t rank = 0; rank < states.size(); ++rank) {
        State& state = states[rank];
        if (state.next < order[rank].size()) {
          const ActionPart next = order[rank][state.next].parts()[0];
          const int at = ready(next);
          const bool forward = next.kind() == ActionKind::kForward;
          if (at != kNotDone && at <= slot && (!forward || state.live < slots_[rank].most)) {
            ++state.next;
            state.live += forward;
            if (!forward)
              state.weights.emplace_back(ActionKind::kBackwardWeight, next.stage(),
                                         next.microbatch());
            filled[rank].emplace_back(next);
            ran.push_back(next);
            continue;
          }
        }
        if (state.weights.empty()) continue;
        filled[rank].emplace_back(state.weights.front());
        state.weights.pop_front();
        --state.live;
        --left;
      }
      // Results are available from the next slot on.
      for (const ActionPart one : ran) finish(one, slot + 1);
      left -= ran.size();
    }
    return filled;
  }

  int num_ranks_, num_microbatches_;
  bool splits_backward_;
  ir::Placement placement_;
  ir::StageMicrobatchTable<std::array<int, 3>> done_;  // by ir::Result
  std::vector<Placed> placed_;                         // by slot, then rank
  std::vector<RankSlots> slots_;
};

}  // namespace

ir::Rows repeat_block(const Shape& shape, const std::vector<BlockSlots>& block,
                      bool splits_backward, int memory) {
  return BlockSchedule(shape, block, splits_backward, memory).run();
}

}  // namespace pipewright::schedules
