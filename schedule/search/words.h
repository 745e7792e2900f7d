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
// Nothing is lost by that. If costs do not depend on the microbatch, some optimal schedule runs F,
// I and W of every stage in microbatch order: give the k-th instance that runs of a letter to
// microbatch k. Sorting keeps every dependency, because each start follows the end that it needs,
// and sorted ends stay below sorted starts; memory and occupancy do not know microbatches. With
// Problem::microbatch_scale it is a restriction.

namespace pipewright::schedule::search {

enum class Pass : uint8_t { kForward = 0, kInput = 1, kWeight = 2 };  // F, I, W

using Letter = uint16_t;  // 3 * stage + pass
using Word = std::vector<Letter>;
using Words = std::vector<Word>;  // one per rank

inline constexpr int kMaxSearchStages = 16'384;  // 3 * stage + 2 fits a Letter

constexpr Letter letter(int stage, Pass pass) {
  return static_cast<Letter>(3 * stage + static_cast<int>(pass));
}
constexpr int stage_of(Letter letter) { return letter / 3; }
constexpr Pass pass_of(Letter letter) { return static_cast<Pass>(letter % 3); }

// What the engine needs to know about a letter, without its stage's neighbours and placement.
struct LetterInfo {
  Ticks time = 0;    // of a microbatch whose scale is 1
  Ticks delay = 0;   // from the end of `need` to the earliest start of this letter
  int need = -1;     // the letter whose same instance must end before this one starts, or -1
  int unlocks = -1;  // the other letter than W that needs this one, or -1
  int rank = 0;
  Memory memory = 0;     // change of the rank's memory by this letter
  Memory temporary = 0;  // how much more than after it the rank has in use while it runs
};
// One entry per letter of the problem: 3 * num_stages. Linear.
std::vector<LetterInfo> letters_of(const Problem& problem);

// The words of the schedule that runs one microbatch at a time. It needs the least memory of all
// schedules: least_memory().
Words one_at_a_time(const Problem& problem);

// Per rank, the least memory limit that a schedule can meet: what one microbatch needs when it is
// alone.
std::vector<Memory> least_memory(const Problem& problem);

// Per rank, the peak of memory along the word.
std::vector<Memory> peak_memory(const Problem& problem, const Words& words);
bool fits_memory(const Problem& problem, const Words& words);

// The letters of one part of an action, which is an F, B, I or W: two for a B of a problem that
// splits backwards.
void append(const Problem& problem, ir::ActionPart part, Word* word);
// The kind of action of a letter: with an unsplit backward, B for an I.
ir::ActionKind kind_of(const Problem& problem, Pass pass);
// A compute order for the problem, without rows.
ir::ComputeOrder empty_order(const Problem& problem, std::string name);

// The compute order with these words. I and W stay separate actions; with an unsplit backward, I is
// written as B.
ir::ComputeOrder order_of(const Problem& problem, const Words& words, std::string name);

// The words of a compute order for this problem's placement and number of microbatches, which must
// be complete. B counts as I and W, a compound as its parts in order: without an overlap the words
// never cost more than the order. Instances are renumbered as above.
Words words_of(const Problem& problem, const ir::Schedule& order);

}  // namespace pipewright::schedule::search

#endif  // PIPEWRIGHT_SCHEDULE_SEARCH_WORDS_H_
