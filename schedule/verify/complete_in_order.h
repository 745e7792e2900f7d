#ifndef PIPEWRIGHT_SCHEDULE_VERIFY_COMPLETE_IN_ORDER_H_
#define PIPEWRIGHT_SCHEDULE_VERIFY_COMPLETE_IN_ORDER_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "pipewright/ir/action.h"
#include "pipewright/ir/schedule.h"
#include "pipewright/schedule/graph/edge_transfers.h"

namespace pipewright::schedule {

// The actions that a walk along rows has passed: bits per (stage, microbatch). Tells of
// each action whether the bits that it needs are set and its own are not.
//
//   if (!PassedActions::has_enough(program)) return false;
//   PassedActions passed(program, ir::Level::kComputeComms);
//   const PassedActions::Marks marks = passed.marks();
//   for (const ir::Action& action : row) valid &= marks.pass(action);
//   return valid && passed.is_complete();
//
// For one thread. Linear in the cells of the schedule.
class PassedActions {
  // What an action of a kind and stage requires, the same for every microbatch: that these bits are
  // set in the cell of its microbatch.
  struct Entry {
    uint16_t own = 0;
    uint16_t of_stage = 0;           // bits of its own stage
    uint16_t of_neighbor = 0;        // bits of another stage of the rank
    std::ptrdiff_t to_neighbor = 0;  // from the cell of its own stage to the other one
  };

 public:
  PassedActions(const ir::Schedule& schedule, ir::Level level);

  // Refers to the PassedActions. Few branches depend on the action.
  class Marks {
   public:
    // Marks an action as passed. Returns whether its turn has come: what it needs of its own rank
    // has been passed, and it has not.
    [[gnu::always_inline]] bool pass(const ir::Action& action) const {
      if (action.is_idle()) return true;
      const ir::ActionPart first = action.parts()[0];
      const Entry& entry = entries_[stage_kind(first)];
      if (entry.own == 0) return true;  // it may have no cell
      uint16_t* cell = cell_of(first);
      bool is_next = has_needs(entry, cell);
      if (action.is_compound()) {
        // A part of a compound cannot use a result of the other part.
        const ir::ActionPart second = action.parts()[1];
        const Entry& other = entries_[stage_kind(second)];
        uint16_t* other_cell = cell_of(second);
        is_next &=
            has_needs(other, other_cell) && (cell != other_cell || (entry.own & other.own) == 0);
        *other_cell |= other.own;
      }
      *cell |= entry.own;
      return is_next;
    }

   private:
    friend class PassedActions;
    Marks(const Entry* entries, uint16_t* cells, size_t num_microbatches)
        : entries_(entries), cells_(cells), num_microbatches_(num_microbatches) {}

    static bool has_needs(const Entry& entry, const uint16_t* cell) {
      return ((*cell & (entry.own | entry.of_stage)) == entry.of_stage) &
             ((cell[entry.to_neighbor] & entry.of_neighbor) == entry.of_neighbor);
    }
    uint16_t* cell_of(ir::ActionPart part) const {
      return cells_ + static_cast<size_t>(part.stage()) * num_microbatches_ + part.microbatch();
    }

    const Entry* entries_;
    uint16_t* cells_;
    size_t num_microbatches_;
  };
  Marks marks() { return {entries_.data(), cells_.data(), num_microbatches_}; }

  // Whether a schedule has enough actions to be complete. One action with a huge microbatch index
  // must not cost the memory of all the missing ones.
  static bool has_enough(const ir::Schedule& schedule);

  // Each (stage, microbatch) has one forward, and one backward unless there is none at all.
  bool is_complete() const;

 private:
  void fill(ir::ActionPart part, ir::Level level);

  const ir::Schedule& schedule_;
  const size_t num_microbatches_;
  std::vector<Entry> entries_;   // by stage and kind
  std::vector<uint16_t> cells_;  // by stage and microbatch
};

}  // namespace pipewright::schedule

#endif  // PIPEWRIGHT_SCHEDULE_VERIFY_COMPLETE_IN_ORDER_H_
