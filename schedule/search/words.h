#ifndef PIPEWRIGHT_SCHEDULE_SEARCH_WORDS_H_
#define PIPEWRIGHT_SCHEDULE_SEARCH_WORDS_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "pipewright/ir/schedule.h"
#include "pipewright/schedule/problem/problem.h"

// A schedule as the search handles it: one word per rank over the letters (stage, F|I|W). Letters
// carry no microbatch: the k-th time that a letter occurs, it is for microbatch k.
//
//   rank 0 of 2, 4 microbatches   0F 0F 0I 0F 0I 0W 0F 0I 0W 0W 0I 0W
//
// With two replicas of the model, `stage` is the number of an instance (ir::Placement), and the
// k-th time is the k-th microbatch of its replica. Below, a stage means an instance.
//
// A step is what a rank runs at one time: a letter alone, or a compound. A compound is an F and an
// I, or an F and a whole backward (F, I, W, with I and W of one microbatch), in this order; each of
// its letters but the last is marked `together` with the next one, here by a +.
//
//   rank 0 of 2, 4 microbatches   0F 0F 0F+0I 0F+0I+0W 0W 0I 0W 0I 0W
//
// Nothing is lost by leaving microbatches out. If costs do not depend on the microbatch, some
// optimal schedule runs F, I and W of every stage in microbatch order: assign the k-th run of each
// letter to microbatch k. Sorting keeps every dependency, because each start follows the
// end that it needs, and sorted ends stay below sorted starts; memory and occupancy do not know
// microbatches. With Problem::microbatch_scale it is a restriction. With slices the k-th I and W of
// a stage are those of Problem::backward_at(k), which is the order that slices need. Between stages
// nothing changes, because all of them have one order of I. On the last stage, the Is of a
// microbatch need the F of its last slice.
//
// Pure functions on plain values; any thread. All of them take linear time.

namespace pipewright::schedule::search {

enum class Pass : uint8_t { kForward = 0, kInput = 1, kWeight = 2 };  // F, I, W

using Letter = uint32_t;  // 3 * stage + pass, and kTogether
using Word = std::vector<Letter>;
using Words = std::vector<Word>;  // one per rank

inline constexpr Letter kTogether = Letter{1} << 31;  // runs at once with the next letter
inline constexpr int kMaxSearchStages = 16'384;       // of the dispatcher: see WakeQueue

constexpr Letter letter(int stage, Pass pass) {
  return 3 * static_cast<Letter>(stage) + static_cast<Letter>(pass);
}
// The letter without its mark: an index into letters_of().
constexpr Letter plain(Letter letter) { return letter & ~kTogether; }
constexpr bool is_together(Letter letter) { return (letter & kTogether) != 0; }
constexpr int stage_of(Letter letter) { return static_cast<int>(plain(letter) / 3); }
constexpr Pass pass_of(Letter letter) { return static_cast<Pass>(plain(letter) % 3); }

// The microbatch of the k-th time that a letter occurs.
inline int microbatch_of(const Problem& problem, Letter letter, int k) {
  return problem.placement.microbatch_of_instance(stage_of(letter)) +
         (pass_of(letter) == Pass::kForward ? k : problem.backward_at(k));
}

// How many letters the step has that begins here.
constexpr size_t step_size(const Letter* first) {
  size_t size = 1;
  while (is_together(first[size - 1])) ++size;
  return size;
}

// What the engine needs to know about a letter, without its stage's neighbours and placement.
struct LetterInfo {
  Ticks time = 0;    // of a microbatch whose scale is 1
  Ticks delay = 0;   // from the end of `need` to the earliest start of this letter; see delay_of()
  int need = -1;     // the letter whose same instance must end before this one starts, or -1
  int unlocks = -1;  // the other letter than W that needs this one, or -1
  int rank = 0;
  bool needs_last_slice = false;  // of its microbatch, rather than the same instance
  bool recomputes = false;        // before what it needs has arrived
};
static_assert(sizeof(LetterInfo) == 32, "so that an index is a shift");
// Which instance of `need` must end before the k-th of this letter starts.
inline int needed_instance(const Problem& problem, const LetterInfo& info, int k) {
  return info.needs_last_slice ? problem.backward_at(k - k % problem.slices) : k;
}
// The time of the k-th of a letter.
inline Ticks time_of(const Problem& problem, const LetterInfo& info, Letter letter, int k) {
  if (problem.microbatch_scale.empty()) [[likely]]
    return info.time;
  return problem.scaled(info.time, microbatch_of(problem, letter, k));
}
// The delay of the k-th of a letter: less by its recomputation, whose time depends on k if
// microbatches have scales; without them LetterInfo::delay.
inline Ticks delay_of(const Problem& problem, const LetterInfo& info, Letter letter, int k) {
  if (!info.recomputes) [[likely]]
    return info.delay;
  return info.delay - problem.scaled(problem.work(stage_of(letter)).recomputation,
                                     microbatch_of(problem, letter, k));
}
// One entry per letter of the problem: 3 * num_instances.
std::vector<LetterInfo> letters_of(const Problem& problem);

// What a letter does to the memory of its rank.
struct MemoryUse {
  Memory change = 0;     // from before it runs to after it
  Memory temporary = 0;  // how much more than after it is in use while it runs
};
// A whole backward of a compound has the memory of F until it ends. Of other compounds, each letter
// uses what it does alone: F comes first, so its memory is there while the backward runs.
MemoryUse memory_use(const StageWork& work, Pass pass, bool is_whole = false);

// The words of the schedule that runs one microbatch at a time. It needs the least memory of all
// schedules: least_memory().
Words one_at_a_time(const Problem& problem);

// Per rank, the least memory limit that a schedule can meet: what one microbatch needs when it is
// alone.
std::vector<Memory> least_memory(const Problem& problem);

// Per rank, the peak of memory along the word.
std::vector<Memory> peak_memory(const Problem& problem, const Words& words);
bool fits_memory(const Problem& problem, const Words& words);

bool has_compound(const Words& words);
// The words in which each F and I that are neighbours and alone form a compound, from left to
// right, unless they are of one microbatch.
Words joined(const Problem& problem, const Words& words);

// The compute order with these words. I and W stay separate actions but in a whole backward of a
// compound; with an unsplit backward, I is written as B. F comes first in its compounds.
ir::ComputeOrder order_of(const Problem& problem, const Words& words, std::string name);

// The words of a compute order for this problem's placement and number of microbatches, which must
// be complete. B counts as I and W. Compounds stay compounds if the problem has an overlap; else
// they count as their parts in order. Without an overlap the words never cost more than the order.
// Instances are renumbered as above.
Words words_of(const Problem& problem, const ir::Schedule& order);

}  // namespace pipewright::schedule::search

#endif  // PIPEWRIGHT_SCHEDULE_SEARCH_WORDS_H_
