// Each rank runs along its word until an input is missing. An action that another rank waits for
// puts that rank into a queue, from which it continues. Every action is visited once, and every
// rank is queued at most once per action that it waited for.
#include "pipewright/schedule/search/replay.h"

#include <algorithm>

namespace pipewright::schedule::search {

Replay::Replay(const Problem& problem)
    : problem_(problem),
      microbatches_(static_cast<size_t>(problem.num_microbatches)),
      letters_(letters_of(problem)),
      ends_(letters_.size() * microbatches_),
      instances_(letters_.size()),
      ranks_(static_cast<size_t>(problem.num_ranks())) {
  queue_.reserve(ranks_.size());
}

bool Replay::run(const Words& words) {
  std::ranges::fill(ends_, -1);
  std::ranges::fill(instances_, 0);
  size_t left = 0;
  queue_.clear();
  for (size_t rank = ranks_.size(); rank-- > 0;) {
    const Word& word = words[rank];
    ranks_[rank] = {word.data(), word.data() + word.size(), 0, -1, true};
    left += word.size();
    queue_.push_back(static_cast<int>(rank));
  }
  const bool is_scaled = !problem_.microbatch_scale.empty();
  while (!queue_.empty()) {
    const int this_rank = queue_.back();
    queue_.pop_back();
    RankState& rank = ranks_[static_cast<size_t>(this_rank)];
    rank.queued = false;
    const Letter* next = rank.next;
    Ticks time = rank.time;
    for (; next != rank.stop; ++next) {
      const Letter one = *next;
      const LetterInfo& info = letters_[one];
      const auto instance = static_cast<size_t>(instances_[one]);
      Ticks start = time;
      if (info.need >= 0) {
        const Ticks input = ends_[static_cast<size_t>(info.need) * microbatches_ + instance];
        if (input < 0) break;
        start = std::max(start, input + info.delay);
      }
      if (rank.start < 0) rank.start = start;
      time =
          start + (is_scaled ? problem_.scaled(info.time, static_cast<int>(instance)) : info.time);
      ends_[one * microbatches_ + instance] = time;
      ++instances_[one];
      if (info.unlocks >= 0) {
        const int other = letters_[static_cast<size_t>(info.unlocks)].rank;
        RankState& waiting = ranks_[static_cast<size_t>(other)];
        if (other != this_rank && !waiting.queued) {
          waiting.queued = true;
          queue_.push_back(other);
        }
      }
    }
    left -= static_cast<size_t>(next - rank.next);
    rank.next = next;
    rank.time = time;
  }
  if (left > 0) return false;
  cost_ = sum_of_spans_ = makespan_ = 0;
  longest_rank_ = 0;
  for (size_t rank = 0; rank < ranks_.size(); ++rank) {
    const Ticks span = ranks_[rank].time - std::max<Ticks>(ranks_[rank].start, 0);
    sum_of_spans_ += span;
    makespan_ = std::max(makespan_, ranks_[rank].time);
    if (span <= cost_) continue;
    cost_ = span;
    longest_rank_ = static_cast<int>(rank);
  }
  return true;
}

}  // namespace pipewright::schedule::search
