// A cut is one position per rank from which on each letter of the rank occurs k times in the next
// part of the word. Cuts are made at points in time: on each rank, the first such position that the
// replay reaches from then on. So a schedule that is periodic at that time repeats exactly; of any
// other, the replay of a somewhat longer schedule says what a repetition costs, or that it
// deadlocks. k is 1, 2 or the number of ranks, the groups in which loops with several stages per
// rank run.
//
// Finding all positions takes linear time. The cuts that are replayed are spread evenly over the
// schedule; there are as many as the budget allows.
#include "pipewright/schedule/search/repeat.h"

#include <algorithm>
#include <cstddef>
#include <set>
#include <vector>

#include "pipewright/schedule/search/replay.h"

namespace pipewright::schedule::search {
namespace {

constexpr int kLeastPerRank = 4;
constexpr int64_t kMostCuts = 200;

// A position in each rank's word, and the length of the part that starts there.
struct Cut {
  std::vector<size_t> positions, lengths;
};

// By position of a word: whether a step begins there, another one `length` letters later, and each
// of its letters occurs `count` times between.
std::vector<bool> even_positions(const Word& word, size_t num_letters, size_t length, int count) {
  std::vector<bool> is_even(word.size());
  std::vector<int> occurrences(num_letters);
  int wrong = static_cast<int>(length) / count;  // letters that do not occur `count` times
  const auto change = [&](Letter letter, int by) {
    int& own = occurrences[plain(letter)];
    wrong += own == count;
    own += by;
    wrong -= own == count;
  };
  for (size_t end = 0; end < word.size(); ++end) {
    change(word[end], 1);
    if (end >= length) change(word[end - length], -1);
    if (end + 1 < length || wrong != 0 || is_together(word[end])) continue;
    const size_t begin = end + 1 - length;
    is_even[begin] = begin == 0 || !is_together(word[begin - 1]);
  }
  return is_even;
}

class Cutter {
 public:
  Cutter(const Problem& brief, const Words& words) : words_(words), letters_(letters_of(brief)) {
    Replay replay(brief);
    if (!replay.run(words)) return;
    std::vector<int> instances(letters_.size());
    for (const Word& word : words) {
      std::vector<Ticks>& starts = starts_.emplace_back();
      for (const Letter marked : word) {
        const Letter one = plain(marked);
        starts.push_back(replay.end(one, instances[one]++) - letters_[one].time);
      }
    }
    end_ = replay.makespan();
  }

  // Up to `most` cuts for parts of `count` microbatches.
  std::vector<Cut> cuts(int count, int num_microbatches, int64_t most) const {
    std::vector<std::vector<size_t>> even;  // by rank
    std::vector<size_t> lengths;
    for (const Word& word : words_) {
      lengths.push_back(word.size() / static_cast<size_t>(num_microbatches) *
                        static_cast<size_t>(count));
      const std::vector<bool> is_even =
          even_positions(word, letters_.size(), lengths.back(), count);
      std::vector<size_t>& positions = even.emplace_back();
      for (size_t position = 0; position < word.size(); ++position) {
        if (is_even[position]) positions.push_back(position);
      }
    }
    std::vector<Cut> cuts;
    std::set<std::vector<size_t>> seen;
    for (int64_t k = 0; k < most; ++k) {
      const Ticks time = static_cast<Ticks>(static_cast<double>(end_) / static_cast<double>(most) *
                                            static_cast<double>(k));
      std::vector<size_t> positions;
      for (size_t rank = 0; rank < words_.size(); ++rank) {
        const auto next = std::ranges::partition_point(
            even[rank], [&](size_t position) { return starts_[rank][position] < time; });
        if (next == even[rank].end()) return cuts;
        positions.push_back(*next);
      }
      if (seen.insert(positions).second) cuts.push_back({positions, lengths});
    }
    return cuts;
  }

  Words repeated(const Cut& cut, int copies) const {
    Words result;
    for (size_t rank = 0; rank < words_.size(); ++rank) {
      const Word& word = words_[rank];
      const auto begin = word.begin() + static_cast<std::ptrdiff_t>(cut.positions[rank]);
      const auto end = begin + static_cast<std::ptrdiff_t>(cut.lengths[rank]);
      Word& longer = result.emplace_back(word.begin(), begin);
      for (int copy = 0; copy <= copies; ++copy) longer.insert(longer.end(), begin, end);
      longer.insert(longer.end(), end, word.end());
    }
    return result;
  }

 private:
  const Words& words_;
  std::vector<LetterInfo> letters_;
  std::vector<std::vector<Ticks>> starts_;  // by rank and position
  Ticks end_ = 0;
};

}  // namespace

int brief_microbatches(const Problem& problem) {
  const int ranks = problem.num_ranks(), microbatches = problem.num_microbatches;
  if (microbatches / kFewPerRank < ranks || !problem.microbatch_scale.empty() ||
      problem.slices > 1 || problem.placement.num_replicas() > 1)
    return microbatches;
  // What is left out is a multiple of 2 P, so of every k.
  return kLeastPerRank * ranks + (microbatches - kLeastPerRank * ranks) % (2 * ranks);
}

std::optional<Words> repeat(const Problem& brief, const Words& words, const Problem& longer,
                            int64_t evaluations) {
  const Cutter cutter(brief, words);
  const int extra = longer.num_microbatches - brief.num_microbatches;
  // The cost of a repetition shows after some copies.
  Problem probe = brief;
  probe.num_microbatches +=
      std::min(extra, brief.num_microbatches / (2 * brief.num_ranks()) * (2 * brief.num_ranks()));
  const int64_t actions = int64_t{3} * probe.num_stages() * probe.num_microbatches;
  const int64_t most = std::clamp<int64_t>(evaluations / (3 * actions), 4, kMostCuts);
  Replay replay(probe);
  std::optional<Cut> best;
  int best_count = 1;
  Ticks least = 0;
  for (const int count : std::set<int>{1, 2, brief.num_ranks()}) {
    if (extra % count != 0) continue;
    const int copies = (probe.num_microbatches - brief.num_microbatches) / count;
    for (Cut& cut : cutter.cuts(count, brief.num_microbatches, most)) {
      if (!replay.run(cutter.repeated(cut, copies))) continue;
      if (best && replay.cost() >= least) continue;
      least = replay.cost();
      best = std::move(cut);
      best_count = count;
    }
  }
  if (!best) return std::nullopt;
  Words result = cutter.repeated(*best, extra / best_count);
  return Replay(longer).run(result) ? std::optional(std::move(result)) : std::nullopt;
}

}  // namespace pipewright::schedule::search
