#ifndef PIPEWRIGHT_SCHEDULE_GRAPH_TURNS_H_
#define PIPEWRIGHT_SCHEDULE_GRAPH_TURNS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

#include "pipewright/ir/schedule.h"

namespace pipewright::schedule {

// Where a rank goes on in its row.
struct RestOfRow {
  const ir::Action* next;
  const ir::Action* end;
  uint32_t number;  // of the next action, as in ChannelGraph

  // Where a turn ends at the latest. What a rank makes in its turn is then used while it is still
  // in the cache, even where the rank need not wait for the others.
  const ir::Action* end_of_turn() const { return next + std::min<ptrdiff_t>(end - next, 64); }
};

// At the end of a rank's turn: by its next one, what follows in its row, and in values of the same
// size that go with the row's actions, would no longer be in the cache. A turn passes at most two
// lines as a rule. What is fetched need not exist.
template <typename Value>
void fetch_ahead(const Value* next) {
  static_assert(sizeof(Value) == sizeof(ir::Action));
  __builtin_prefetch(next + 16);
  __builtin_prefetch(next + 20);
}

// The whole rows, by rank.
inline std::vector<RestOfRow> whole_rows(const ir::Rows& rows) {
  std::vector<RestOfRow> all;
  uint32_t number = 0;
  for (const ir::Row& row : rows) {
    all.push_back({row.data(), row.data() + row.size(), number});
    number += static_cast<uint32_t>(row.size());
  }
  return all;
}

// Lets ranks take turns, for a walk along all rows at once: a rank goes on until it must wait for
// another one, which wakes it later.
//
//   Turns turns(num_ranks);
//   turns.run([&](size_t rank) {
//     // goes on from where the rank stopped; calls turns.wake(other) for ranks that may go on
//     return Turns::kWaits;
//   });
//
// If a rank is woken at most once per action, a walk takes time linear in the number of actions.
class Turns {
 public:
  // Why a rank's turn is over.
  enum Stop { kAtEnd, kWaits, kMayGoOn };
  // That of a rank whose turn was to end at `end_of_turn`.
  static Stop stop_of(const RestOfRow& row, const ir::Action* end_of_turn) {
    if (row.next == row.end) return kAtEnd;
    return row.next == end_of_turn ? kMayGoOn : kWaits;
  }

  explicit Turns(size_t num_ranks)
      : awake_(num_ranks), num_awake_(num_ranks), waits_(num_ranks, false) {
    std::iota(awake_.begin(), awake_.end(), 0);
  }

  void wake(size_t rank) {
    if (!waits_[rank]) return;
    waits_[rank] = false;
    awake_[num_awake_++] = rank;
  }

  // Calls go_on(rank), which returns a Stop, for each rank, and again after each time that it was
  // woken or may go on by itself. Returns whether all ranks reached their ends.
  template <typename GoOn>
  bool run(const GoOn& go_on) {
    size_t left = num_awake_;
    std::vector<size_t> round(awake_.size());
    while (const size_t num_turns = std::exchange(num_awake_, 0)) {
      round.swap(awake_);
      for (size_t turn = 0; turn < num_turns; ++turn) {
        const size_t rank = round[turn];
        switch (go_on(rank)) {
          case kAtEnd:
            --left;
            break;
          case kWaits:
            waits_[rank] = true;
            break;
          case kMayGoOn:
            awake_[num_awake_++] = rank;
            break;
        }
      }
    }
    return left == 0;
  }

 private:
  std::vector<size_t> awake_;  // in the order in which they go on, and room for the others
  size_t num_awake_;
  std::vector<uint8_t> waits_;
};

}  // namespace pipewright::schedule

#endif  // PIPEWRIGHT_SCHEDULE_GRAPH_TURNS_H_
