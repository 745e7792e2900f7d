#ifndef PIPEWRIGHT_SCHEDULE_SEARCH_COMPOUND_ROWS_H_
#define PIPEWRIGHT_SCHEDULE_SEARCH_COMPOUND_ROWS_H_

#include <string>
#include <vector>

#include "pipewright/ir/schedule.h"
#include "pipewright/schedule/problem/problem.h"
#include "pipewright/schedule/search/words.h"

// Schedules with compounds as the search handles them: words (words.h) in which an F may run at the
// same time as an I, or as a whole backward, of its rank.
//
//   rank 0 of 2, 3 microbatches   0F 0F (0F;0I) 0W 0I 0W 0I 0W
//
// As in words, the k-th time that a letter occurs, it is for microbatch k. Plain values; no thread
// rules apply.

namespace pipewright::schedule::search {

// One letter; or an F and its partner, an I, in a compound.
struct Step {
  static constexpr Letter kNone = UINT16_MAX;

  Letter letter = kNone;
  Letter partner = kNone;
  bool is_whole = false;  // the partner is a whole backward: W of its microbatch too

  bool is_compound() const { return partner != kNone; }
  friend bool operator==(const Step&, const Step&) = default;
};
using CompoundRow = std::vector<Step>;
using CompoundRows = std::vector<CompoundRow>;  // one per rank

bool has_compound(const CompoundRows& rows);

// The rows of a compute order, which must be complete. B counts as I and W unless it is in a
// compound.
CompoundRows compound_rows_of(const Problem& problem, const ir::Schedule& order);
CompoundRows compound_rows_of(const Words& words);
// The compute order with these rows. F comes first in its compounds.
ir::ComputeOrder order_of(const Problem& problem, const CompoundRows& rows, std::string name);

// The peak of memory along a row. While a compound runs, F has its memory and the backward still
// has what it frees.
Memory peak_memory(const Problem& problem, const std::vector<LetterInfo>& letters,
                   const CompoundRow& row);

// When the steps run: as soon as their rank is free and their inputs are there. Keeps its buffers.
// Not thread-safe. The problem must outlive it. Linear.
class CompoundReplay {
 public:
  explicit CompoundReplay(const Problem& problem);

  // Whether the rows run to their end; false for a deadlock. They must contain each of the rank's
  // letters once per microbatch.
  bool run(const CompoundRows& rows);

  // After run() returned true: the longest span of any rank, the sum of all spans, the end of the
  // last step, and how long the busiest rank computes.
  Ticks cost() const { return cost_; }
  Ticks sum_of_spans() const { return sum_of_spans_; }
  Ticks makespan() const { return makespan_; }
  Ticks busiest() const { return busiest_; }

  const std::vector<LetterInfo>& letters() const { return letters_; }

 private:
  struct Rank {
    size_t next = 0;  // the next step
    Ticks time = 0;   // the end of the last one
    Ticks start = -1;
    Ticks busy = 0;
    bool is_queued = true;
  };

  // When the letter's input for its next microbatch arrives; -1 if it is not known yet.
  Ticks arrival(Letter letter) const;
  Ticks duration(Letter letter) const;
  // Marks the letter's next instance as ended and wakes the rank that waits for it.
  void finish(Letter letter, Ticks end);

  const Problem& problem_;
  size_t microbatches_;
  std::vector<LetterInfo> letters_;
  std::vector<Ticks> ends_;     // by letter and instance; -1 until it has run
  std::vector<int> instances_;  // by letter: how often it has run
  std::vector<Rank> ranks_;
  std::vector<size_t> queue_;  // ranks that may be able to go on
  Ticks cost_ = 0, sum_of_spans_ = 0, makespan_ = 0, busiest_ = 0;
};

}  // namespace pipewright::schedule::search

#endif  // PIPEWRIGHT_SCHEDULE_SEARCH_COMPOUND_ROWS_H_
