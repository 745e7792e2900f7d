#ifndef PIPEWRIGHT_SCHEDULE_SEARCH_REPLAY_H_
#define PIPEWRIGHT_SCHEDULE_SEARCH_REPLAY_H_

#include <cstddef>
#include <vector>

#include "pipewright/schedule/problem/problem.h"
#include "pipewright/schedule/search/words.h"

namespace pipewright::schedule::search {

// When each action of given words runs: as soon as its rank is free and its input is there. Keeps
// its buffers, so replaying many words of one problem allocates nothing. Not thread-safe. The
// problem must outlive it. Linear in the number of actions, at 10 to 30 ns each. A compound starts
// when the inputs of all its letters are there, and their results are there when it ends.
//
//   Replay replay(problem);
//   if (replay.run(words)) std::cout << replay.cost();
class Replay {
 public:
  explicit Replay(const Problem& problem);

  // Whether the words run to their end; false for a deadlock. They must contain each of the rank's
  // letters once per microbatch. They have compounds only if the problem has an overlap.
  bool run(const Words& words);

  // After run() returned true: the longest span of any rank, and the end of the last action.
  Ticks cost() const { return cost_; }
  Ticks makespan() const { return makespan_; }
  // How long the busiest rank computes.
  Ticks busiest() const;
  // The end of one instance of a letter.
  Ticks end(Letter letter, int instance) const {
    return ends_[letter * microbatches_ + static_cast<size_t>(instance)];
  }

 private:
  struct RankState {
    const Letter* next;  // the next letter to run
    const Letter* stop;
    Ticks time;   // end of the last action
    Ticks start;  // of the first action, or -1
    bool queued;
    Ticks hidden;  // by its compounds
  };

  // Without compounds every letter is a step; plain microbatches have one scale and no slices.
  template <bool kCompounds, bool kPlain>
  bool run_steps(const Words& words);
  bool run_compound(RankState* rank, const Letter** next, Ticks* time);
  Ticks end_of_need(const LetterInfo& info, int k) const;
  // Queues the rank that may wait for an instance of the letter.
  void wake(const LetterInfo& info);

  const Problem& problem_;
  size_t microbatches_;
  std::vector<LetterInfo> letters_;
  std::vector<Ticks> ends_;     // by letter and instance; -1 until it has run
  std::vector<int> instances_;  // by letter: how often it has run
  std::vector<RankState> ranks_;
  std::vector<int> queue_;  // ranks that may be able to go on
  Ticks cost_ = 0, makespan_ = 0;
};

}  // namespace pipewright::schedule::search

#endif  // PIPEWRIGHT_SCHEDULE_SEARCH_REPLAY_H_
