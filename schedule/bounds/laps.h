#ifndef PIPEWRIGHT_SCHEDULE_BOUNDS_LAPS_H_
#define PIPEWRIGHT_SCHEDULE_BOUNDS_LAPS_H_

#include <optional>
#include <vector>

#include "pipewright/schedule/bounds/chain.h"
#include "pipewright/schedule/bounds/rank_memory.h"
#include "pipewright/schedule/problem/problem.h"

namespace pipewright::schedule {

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

// Of the rank with these stages, ascending, and this memory, without compounds. `share` is one of
// RestAtShare that is tried besides 0 and kWholeShare. Null if no more than three times as many
// microbatches as fit in memory are there: the two idle times may overlap then.
std::optional<LapIdle> lap_idle(const Chain& fast, const Chain& slow,
                                const std::vector<int>& stages, const RankMemory& memory,
                                Ticks share);

}  // namespace pipewright::schedule

#endif  // PIPEWRIGHT_SCHEDULE_BOUNDS_LAPS_H_
