#ifndef PIPEWRIGHT_SCHEDULE_BOUNDS_RANK_TERMS_H_
#define PIPEWRIGHT_SCHEDULE_BOUNDS_RANK_TERMS_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "pipewright/schedule/bounds/bounds.h"
#include "pipewright/schedule/bounds/knapsack.h"
#include "pipewright/schedule/problem/problem.h"

namespace pipewright::schedule {

// The actions of one microbatch without any waiting: F on all stages, then I back to the first. All
// times between two of them are differences of sums that are computed once. Immutable.
class Chain {
 public:
  Chain(const Problem& problem, int microbatch);

  // The times of the microbatch's actions.
  Ticks forward(int stage) const { return at(forward_, stage); }
  Ticks backward_input(int stage) const { return at(backward_input_, stage); }
  Ticks backward_weight(int stage) const { return at(backward_weight_, stage); }

  // From the start of F on `from` to the start of I on `to`.
  Ticks path(int from, int to) const {
    return turn_ - at(forward_start_, from) + at(backward_end_, to) - backward_input(to);
  }
  // From the end of F on `from` to the end of I on `to`.
  Ticks chain(int from, int to) const {
    return path(from, to) - forward(from) + backward_input(to);
  }
  // From the start of F on `outer` to the start of F on `inner`; outer <= inner.
  Ticks head(int outer, int inner) const {
    return at(forward_start_, inner) - at(forward_start_, outer);
  }
  // From the end of I on `inner` to the end of I on `outer`; outer <= inner.
  Ticks tail(int outer, int inner) const {
    return at(backward_end_, outer) - at(backward_end_, inner);
  }

 private:
  static Ticks at(const std::vector<Ticks>& values, int stage) {
    return values[static_cast<size_t>(stage)];
  }

  std::vector<Ticks> forward_, backward_input_, backward_weight_;  // by stage
  std::vector<Ticks> forward_start_;  // by stage, from the start of F on stage 0
  Ticks turn_ = 0;                    // the end of F on the last stage, from there too
  std::vector<Ticks> backward_end_;   // by stage, from the end of F on the last stage
};

// Is and Ws that are left to do, and their memory.
struct UnfinishedItem {
  Memory size;
  Ticks inputs, weights;
  int64_t count;
};

// The idle time after the last F of a rank, less the W work that is left when its last I ends, is
// at least
//
//   max(0, chain - I work) - W work
//
// of what is left to do when the last F ends: nested_window in bounds.h says why. The least value
// for anything that fits in memory is a knapsack problem of two values. This is one of a single
// value that is at most as large, for any share from 0 to kWholeShare:
//
//   share / kWholeShare (chain - I work) - W work
constexpr Ticks kWholeShare = 1024;

class RestAtShare {
 public:
  // For items that take at most `largest`.
  RestAtShare(const std::vector<UnfinishedItem>& items, Memory largest, Ticks share);

  // kWholeShare times the least value where this I and W work is left, and that of items within a
  // capacity of at most `largest`.
  Ticks scaled(Ticks chain, Ticks inputs, Ticks weights, Memory capacity) const;

 private:
  Ticks share_;
  Knapsack items_;
};

// Divided by kWholeShare, and rounded up, as costs are whole numbers.
Ticks unscaled(Ticks scaled);

// What the memory of one rank can hold, as items of knapsack problems. bounds.h has the notation.
//
// A microbatch goes up through the stages of a rank and comes back down. Its Fs on the rank are
// those of the stages up to one, and so are its Is that are left. Hence items that are sums. Times
// are those of the slowest microbatch. Plain values.

struct RankMemory {
  RankMemory(const Problem& problem, const Chain& slow, const std::vector<int>& stages);

  int64_t microbatches;
  Memory limit = 0;  // L, at most what all microbatches take
  Memory whole = 0;  // of one microbatch between its last F and its first I: all a_s
  Ticks forwards = 0, inputs = 0, weights = 0;  // of one microbatch
  bool all_fit = false;                         // all Fs of the rank fit in memory at once

  std::vector<MemoryItem> single_forwards;  // of any stages
  std::vector<MemoryItem> held;             // Ws, after their I
  std::vector<MemoryItem> started;          // microbatches that have run no I
  std::vector<UnfinishedItem> unfinished;   // microbatches that have run all Fs
  // Those that have not reached F_xl, and those that have ended I_xl.
  std::vector<MemoryItem> partly_started;
  std::vector<UnfinishedItem> partly_finished;

  // How many microbatches can be between their last F and their first I at once.
  int64_t fit() const { return whole == 0 ? microbatches : limit / whole; }
};

// The idle time of a rank at both ends of the step: theorem 6 of docs/bounds.md, which has the
// proof.
//
// Only the n microbatches that have run F_xl before the first I of the rank can run their Is within
// a lap from then, because the next F_xl comes after that I, and from it to the end of its I_xl a
// lap passes. If n is small, the rank idles in the lap; if it is large, it may have filled the time
// before with less work. Seen backwards in time, the same holds for the n microbatches that have
// I_xl left when the last F ends.
struct LapIdle {
  Ticks warm_up;    // until the lap after the first I is over
  Ticks rest;       // from the lap before the last F on, as in RestAtShare
  Ticks cool_down;  // as rest, with all W work done before the last I ends
};

// For the rank with these stages, ascending, and this memory, without compounds. `share` is one of
// RestAtShare that is tried besides 0 and kWholeShare. Null if no more than three times as many
// microbatches as fit in memory are there: the two idle times may overlap then.
std::optional<LapIdle> lap_idle(const Chain& fast, const Chain& slow,
                                const std::vector<int>& stages, const RankMemory& memory,
                                Ticks share);

// What the bounds of bounds.h, which has the notation, have in common. Plain values.

// The work of a rank: work(x) is the sum.
struct Work {
  Ticks forward = 0, backward = 0;  // of all F; of all I and W

  Ticks sum() const { return forward + backward; }
  // Hidden(alone), which bounds.h defines.
  Ticks hidden(const Problem& problem, Ticks alone) const;
};
// The work of the rank with these stages.
Work work_of(const Problem& problem, const std::vector<int>& stages);

// The terms of the statements for one rank.
struct RankTerms {
  Memory limit = 0;      // L, at most what all microbatches take
  bool all_fit = false;  // all Fs of the rank fit in memory at once
  Work work;
  Ticks fill = 0, warm_up = 0;
  Ticks cool_down = 0;  // of the bound warm_up_and_cool_down
  Ticks rest = 0;       // of nested_window, where it may be negative
  Ticks hidden = 0;     // Hidden(min(Fill, path(x0, xl)))
};

// A problem with the chains of its fastest and slowest microbatch, and what is known of each rank.
// The problem must outlive it.
struct Instance {
  explicit Instance(const Problem& of);

  // The terms of the rank with these stages, which are not empty.
  const RankTerms& terms_of(const std::vector<int>& stages) const;

  const Problem& problem;
  Chain fast, slow;
  std::vector<std::vector<int>> stages_of;  // by rank, ascending
  std::vector<RankTerms> terms;             // by rank; of those with stages
};

// The first terms of a bound: a rank's work and, if there is an overlap, what compounds hide of it.
std::vector<BoundTerm> work_terms(const Problem& problem, const Work& work, Ticks hidden);

// The bound of this name, in a file of its own.
Bound first_backwards(const Instance& instance);

}  // namespace pipewright::schedule

#endif  // PIPEWRIGHT_SCHEDULE_BOUNDS_RANK_TERMS_H_
