// Each rank runs along its word until an input is missing. An action that another rank waits for
// puts that rank into a queue, from which it continues. Every action is visited once, and every
// rank is queued at most once per action that it waited for.
#include "pipewright/schedule/search/replay.h"

#include <algorithm>
#include <array>

namespace pipewright::schedule::search {

Replay::Replay(const Problem& problem)
    : problem_(problem),
      microbatches_(static_cast<size_t>(problem.runs_per_instance())),
      letters_(letters_of(problem)),
      ends_(letters_.size() * microbatches_),
      instances_(letters_.size()),
      ranks_(static_cast<size_t>(problem.num_ranks())) {
  queue_.reserve(ranks_.size());
}

// When what the k-th action of a letter needs has ended; negative if it has not.
[[gnu::always_inline]] inline Ticks Replay::end_of_need(const LetterInfo& info, int k) const {
  return ends_[static_cast<size_t>(info.need) * microbatches_ +
               static_cast<size_t>(needed_instance(problem_, info, k))];
}

[[gnu::always_inline]] inline void Replay::wake(const LetterInfo& info) {
  if (info.unlocks < 0) return;
  const int other = letters_[static_cast<size_t>(info.unlocks)].rank;
  RankState& waiting = ranks_[static_cast<size_t>(other)];
  if (other == info.rank || waiting.queued) return;
  waiting.queued = true;
  queue_.push_back(other);
}

// Runs the compound at *next, on a rank that is free at *time, and moves on both. False if an input
// is missing.
bool Replay::run_compound(RankState* rank, const Letter** next, Ticks* time) {
  const size_t size = step_size(*next);
  const std::array letters = {plain((*next)[0]), plain((*next)[1]), plain((*next)[size - 1])};
  const auto instance = [&](Letter one) { return static_cast<size_t>(instances_[one]); };
  std::array<Ticks, 3> own = {};
  Ticks start = *time;
  for (size_t part = 0; part < size; ++part) {
    const LetterInfo& info = letters_[letters[part]];
    own[part] = time_of(problem_, info, letters[part], instances_[letters[part]]);
    if (info.need < 0 || part == 2) continue;
    const Ticks input = end_of_need(info, instances_[letters[part]]);
    if (input < 0) return false;
    const int k = instances_[letters[part]];
    start = std::max(start, input + delay_of(problem_, info, letters[part], k));
  }
  // A whole backward has I and W of one microbatch.
  if (size == 3 && instance(letters[1]) != instance(letters[2])) return false;
  const Ticks length = problem_.together(own[0], own[1] + own[2]);
  if (rank->start < 0) rank->start = start;
  rank->hidden += own[0] + own[1] + own[2] - length;
  *time = start + length;
  *next += size;
  for (size_t part = 0; part < size; ++part) {
    const Letter one = letters[part];
    ends_[one * microbatches_ + instance(one)] = *time;
    ++instances_[one];
    wake(letters_[one]);
  }
  return true;
}

template <bool kCompounds, bool kPlain>
bool Replay::run_steps(const Words& words) {
  std::ranges::fill(ends_, -1);
  std::ranges::fill(instances_, 0);
  size_t left = 0;
  queue_.clear();
  for (size_t rank = ranks_.size(); rank-- > 0;) {
    const Word& word = words[rank];
    ranks_[rank] = {word.data(), word.data() + word.size(), 0, -1, true, 0};
    left += word.size();
    queue_.push_back(static_cast<int>(rank));
  }
  while (!queue_.empty()) {
    RankState& rank = ranks_[static_cast<size_t>(queue_.back())];
    queue_.pop_back();
    rank.queued = false;
    const Letter* next = rank.next;
    Ticks time = rank.time;
    while (next != rank.stop) {
      const Letter one = *next;
      if constexpr (kCompounds) {
        if (is_together(one)) {
          if (!run_compound(&rank, &next, &time)) break;
          continue;
        }
      }
      const LetterInfo& info = letters_[one];
      const auto instance = static_cast<size_t>(instances_[one]);
      Ticks start = time;
      if (info.need >= 0) {
        const Ticks input = kPlain
                                ? ends_[static_cast<size_t>(info.need) * microbatches_ + instance]
                                : end_of_need(info, static_cast<int>(instance));
        if (input < 0) break;
        const Ticks delay =
            kPlain ? info.delay : delay_of(problem_, info, one, static_cast<int>(instance));
        start = std::max(start, input + delay);
      }
      if (rank.start < 0) rank.start = start;
      time =
          start + (kPlain ? info.time : time_of(problem_, info, one, static_cast<int>(instance)));
      ends_[one * microbatches_ + instance] = time;
      ++instances_[one];
      wake(info);
      ++next;
    }
    left -= static_cast<size_t>(next - rank.next);
    rank.next = next;
    rank.time = time;
  }
  if (left > 0) return false;
  cost_ = makespan_ = 0;
  for (const RankState& rank : ranks_) {
    cost_ = std::max(cost_, rank.time - std::max<Ticks>(rank.start, 0));
    makespan_ = std::max(makespan_, rank.time);
  }
  return true;
}

bool Replay::run(const Words& words) {
  const bool is_plain = problem_.microbatch_scale.empty() && problem_.slices == 1;
  if (problem_.overlap > 0)
    return is_plain ? run_steps<true, true>(words) : run_steps<true, false>(words);
  return is_plain ? run_steps<false, true>(words) : run_steps<false, false>(words);
}

Ticks Replay::busiest() const {
  std::vector<Ticks> busy(ranks_.size());
  for (Letter one = 0; one < letters_.size(); ++one) {
    for (int k = 0; k < problem_.runs_per_instance(); ++k)
      busy[static_cast<size_t>(letters_[one].rank)] += time_of(problem_, letters_[one], one, k);
  }
  for (size_t rank = 0; rank < ranks_.size(); ++rank) busy[rank] -= ranks_[rank].hidden;
  return *std::ranges::max_element(busy);
}

}  // namespace pipewright::schedule::search
