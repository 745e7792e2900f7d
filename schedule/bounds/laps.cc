#include "pipewright/schedule/bounds/laps.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "pipewright/schedule/bounds/knapsack.h"
#include "pipewright/schedule/bounds/rest.h"

namespace pipewright::schedule {
namespace {

constexpr Ticks kMost = std::numeric_limits<Ticks>::max();

}  // namespace

std::optional<LapIdle> lap_idle(const Chain& fast, const Chain& slow,
                                const std::vector<int>& stages, const RankMemory& memory,
                                Ticks share) {
  if (memory.fit() < 1 || (memory.microbatches - 1) / 3 < memory.fit()) return std::nullopt;
  const int first = stages.front(), last = stages.back();
  const Ticks path = fast.path(first, last), chain = fast.chain(last, first);
  const Ticks lap = fast.path(last, last) + fast.backward_input(last);
  // What a microbatch can do within the lap, and the memory that it has all the time.
  Ticks backward = 0, forward = 0;
  Memory before_backward = 0, after_forward = 0;
  for (size_t at = 0; at < stages.size(); ++at) {
    const int stage = stages[at];
    const Memory size = memory.single_forwards[at].size;
    // From the start of I_xl to that of I, and from the end of F to that of F_xl.
    if (fast.path(last, stage) - fast.path(last, last) < lap) {
      backward += slow.backward_input(stage) + slow.backward_weight(stage);
    } else {
      before_backward += size;
    }
    if (fast.head(stage, last) + fast.forward(last) - fast.forward(stage) < lap) {
      forward += slow.forward(stage);
    } else {
      after_forward += size;
    }
  }
  const Knapsack started(memory.started, memory.limit);
  const Knapsack partly_started(memory.partly_started, memory.limit);
  const RestAtShare unfinished(memory.unfinished, memory.limit, kWholeShare);
  const RestAtShare partly_finished(memory.partly_finished, memory.limit, kWholeShare);
  const RestAtShare others[] = {{memory.partly_finished, memory.limit, 0},
                                {memory.partly_finished, memory.limit, share}};
  LapIdle least{kMost, kMost, kMost};
  for (int64_t n = 1; n <= memory.fit(); ++n) {
    const Ticks forwards = n * memory.forwards, inputs = n * memory.inputs,
                weights = n * memory.weights;
    const Memory beside = memory.limit - n * memory.whole;
    const Ticks before_first = path - forwards - partly_started.most_work(beside);
    const Ticks lap_after_first = path + lap - forwards - n * backward -
                                  started.most_work(memory.limit - n * before_backward);
    least.warm_up = std::min(least.warm_up, std::max(before_first, lap_after_first));

    const Ticks lap_before_last = unfinished.scaled(chain + lap, n * forward + inputs, weights,
                                                    memory.limit - n * after_forward);
    const Ticks cool_down =
        std::max(lap_before_last, partly_finished.scaled(chain, inputs, weights, beside));
    least.cool_down = std::min(least.cool_down, cool_down);
    Ticks rest = cool_down;
    for (const RestAtShare& one : others)
      rest = std::max(rest, one.scaled(chain, inputs, weights, beside));
    least.rest = std::min(least.rest, rest);
  }
  least.rest = unscaled(least.rest);
  least.cool_down = unscaled(least.cool_down);
  return least;
}

}  // namespace pipewright::schedule
