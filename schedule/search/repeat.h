#ifndef PIPEWRIGHT_SCHEDULE_SEARCH_REPEAT_H_
#define PIPEWRIGHT_SCHEDULE_SEARCH_REPEAT_H_

#include <cstdint>
#include <optional>

#include "pipewright/schedule/problem/problem.h"
#include "pipewright/schedule/search/words.h"

// Schedules for many microbatches from schedules for few: a part of each rank's word in which every
// letter of the rank occurs equally often can be run again, as often as more microbatches need it.
//
//   2 ranks, 4 microbatches        0F 0F 0I [0F 0I 0W] 0F 0I 0W 0W 0I 0W    (rank 0)
//   the same for 6 microbatches    0F 0F 0I [0F 0I 0W] [0F 0I 0W] [0F 0I 0W] 0F 0I 0W 0W 0I 0W
//
// The memory in use is the same before and after such a part, so a repetition needs no more memory.
// If the parts have no idle time, it costs only the work of the microbatches that it adds: where
// the short schedule equals a lower bound that grows by this work, so does the long one.

namespace pipewright::schedule::search {

// From this many microbatches per rank on, repeating a schedule for fewer of them is tried. With
// this many, annealing all of them still works well, too.
inline constexpr int kFewPerRank = 8;

// The number of microbatches to search with in place of the problem's own: between 4 and 6 per
// rank, or the problem's own if it has fewer than kFewPerRank or microbatches of different cost.
int brief_microbatches(const Problem& problem);

// The cheapest words of `longer` that repeat a part of `words`, the words of `brief`: the same
// problem with fewer microbatches, as brief_microbatches() says. nullopt if no part was found whose
// repetition runs. Evaluates about `evaluations` actions.
std::optional<Words> repeat(const Problem& brief, const Words& words, const Problem& longer,
                            int64_t evaluations);

}  // namespace pipewright::schedule::search

#endif  // PIPEWRIGHT_SCHEDULE_SEARCH_REPEAT_H_
