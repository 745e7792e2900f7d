// The moves of the local search. One takes a node out of its word and puts it back a few places
// away. It may not pass another instance of its letter or a node of its rank that it depends on, so
// both stay in order.
//
// A move is one to a few such shifts: of one node, of the same letter in consecutive microbatches,
// of two nodes that change places, or of a block. Memory is checked after all of them.
#include <algorithm>
#include <cstdlib>

#include "pipewright/schedule/search/local_search.h"

namespace pipewright::schedule::search {

// Whether the node may pass those between.
bool LocalSearch::can_shift(const Shift& move) const {
  const std::vector<Node>& word = words_[static_cast<size_t>(move.rank)];
  const Node node = word[static_cast<size_t>(move.from)];
  const NodeInfo& info = at(node);
  for (int k = move.from; k < move.to; ++k) {
    const NodeInfo& passed = at(word[static_cast<size_t>(k) + 1]);
    if (passed.letter == info.letter || passed.before == node) return false;
  }
  for (int k = move.to; k < move.from; ++k) {
    const Node passed = word[static_cast<size_t>(k)];
    if (at(passed).letter == info.letter || info.before == passed) return false;
  }
  return true;
}

// Shifts one node by `distance` places, if it may.
bool LocalSearch::try_shift(Node node, int distance) {
  const NodeInfo& info = at(node);
  const Shift move = {info.rank, info.position, info.position + distance};
  const auto size = static_cast<int>(words_[static_cast<size_t>(info.rank)].size());
  if (move.to < 0 || move.to >= size || !can_shift(move)) return false;
  apply(move);
  shifts_.push_back(move);
  return true;
}

bool LocalSearch::fits() const {
  for (const Shift& move : shifts_) {
    const std::vector<Node>& word = words_[static_cast<size_t>(move.rank)];
    const std::vector<Memory>& memory = memory_[static_cast<size_t>(move.rank)];
    const Memory limit = problem_.memory_limit(move.rank);
    for (int k = std::min(move.from, move.to); k <= std::max(move.from, move.to); ++k) {
      const auto position = static_cast<size_t>(k);
      if (memory[position] > limit - temporary_[at(word[position]).letter]) return false;
    }
  }
  return true;
}

void LocalSearch::apply(const Shift& move) {
  std::vector<Node>& word = words_[static_cast<size_t>(move.rank)];
  std::vector<Memory>& memory = memory_[static_cast<size_t>(move.rank)];
  const auto from = static_cast<size_t>(move.from), to = static_cast<size_t>(move.to);
  const Node node = word[from];
  const auto put = [&](size_t position, Node one) {
    word[position] = one;
    at(one).position = static_cast<int32_t>(position);
  };
  for (size_t k = from; k < to; ++k) put(k, word[k + 1]);
  for (size_t k = from; k > to; --k) put(k, word[k - 1]);
  put(to, node);
  const size_t first = std::min(from, to), last = std::max(from, to);
  Memory used = first == 0 ? 0 : memory[first - 1];
  for (size_t k = first; k <= last; ++k) memory[k] = used += memory_change_[at(word[k]).letter];
}

// Starts at a node of the critical path or at any node, and mostly moves it by one place. False if
// the order or the memory forbids the move; the caller undoes what was shifted.
bool LocalSearch::make_random_shifts() {
  shifts_.clear();
  changes_.clear();
  Node node;
  if (random_.below(4) != 0) {
    node = path_[random_.index(path_.size())];
  } else {
    const std::vector<Node>& word = words_[random_.index(words_.size())];
    node = word[random_.index(word.size())];
  }
  int distance = random_.below(10) < 6 ? 1 : random_.between(1, 6);
  if (random_.one_in(2)) distance = -distance;
  const NodeInfo& info = at(node);
  const std::vector<Node>& word = words_[static_cast<size_t>(info.rank)];
  const int kind = random_.below(20);
  if (kind < 12) return try_shift(node, distance) && fits();
  if (kind < 15) {
    // The following instances of the letter too.
    const int instance = node - static_cast<Node>(info.letter * microbatches_);
    const int count = std::min(random_.between(2, 8), problem_.num_microbatches - instance);
    for (int k = 0; k < count && try_shift(node + k, distance);) ++k;
    return !shifts_.empty() && fits();
  }
  const int position = info.position, size = static_cast<int>(word.size());
  if (kind < 18) {
    // Two nodes change places.
    const int other = position + distance;
    if (other < 0 || other >= size) return false;
    const Node second = word[static_cast<size_t>(other)];
    return try_shift(node, distance) &&
           (std::abs(distance) == 1 ||
            try_shift(second, distance > 0 ? 1 - distance : -1 - distance)) &&
           fits();
  }
  // A block of nodes, the one that moves first in front.
  const int count = random_.between(2, 4), first = distance > 0 ? position - count + 1 : position;
  if (first < 0 || first + count > size) return false;
  block_.assign(word.begin() + first, word.begin() + first + count);
  if (distance > 0) std::ranges::reverse(block_);
  return std::ranges::all_of(block_, [&](Node one) { return try_shift(one, distance); }) && fits();
}

}  // namespace pipewright::schedule::search
