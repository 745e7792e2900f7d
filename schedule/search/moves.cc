// The moves of the local search. One takes a step out of its word and puts it back a few places
// away. It may not pass another instance of its letters or a node of its rank that it depends on,
// so both stay in order.
//
// A move is one to a few such shifts: of one step, of the same letter in consecutive microbatches,
// of two steps that change places, or of a block. Or it makes a compound of an F and an I near each
// other, splits one, or moves a W into one or out of it. Memory is checked after all of them.
#include <algorithm>
#include <cstdlib>

#include "pipewright/schedule/problem/problem.h"
#include "pipewright/schedule/search/local_search.h"

namespace pipewright::schedule::search {
namespace {

constexpr int kJoinReach = 8;  // how many steps away a partner may be

}  // namespace

Ticks LocalSearch::time_of(std::span<const Node> step) const {
  const auto alone = [&](Node node) { return times_[static_cast<size_t>(node)]; };
  if (step.size() == 1) return alone(step[0]);
  return problem_.together(alone(step[0]),
                           alone(step[1]) + (step.size() == 3 ? alone(step[2]) : 0));
}

// Whether the nodes may pass each other.
bool LocalSearch::may_swap(const Move& move) const {
  const std::vector<Node>& word = words_[static_cast<size_t>(move.rank)];
  for (auto k = static_cast<size_t>(move.first); k < static_cast<size_t>(move.middle); ++k) {
    const Node node = word[k];
    const Letter letter = at(node).letter;
    for (auto other = static_cast<size_t>(move.middle); other < static_cast<size_t>(move.last);
         ++other) {
      const NodeInfo& passed = at(word[other]);
      if (passed.letter == letter || passed.before == node) return false;
    }
  }
  return true;
}

void LocalSearch::apply(const Move& move) {
  std::vector<Node>& word = words_[static_cast<size_t>(move.rank)];
  std::vector<Memory>& memory = memory_[static_cast<size_t>(move.rank)];
  const auto first = static_cast<size_t>(move.first), last = static_cast<size_t>(move.last);
  if (move.parts == 0) {
    std::rotate(word.begin() + move.first, word.begin() + move.middle, word.begin() + move.last);
  } else {
    for (size_t k = first; k < last; ++k) {
      NodeInfo& info = at(word[k]);
      const bool is_in = k - first < move.parts;
      info.part = static_cast<uint8_t>(is_in ? k - first : 0);
      info.parts = is_in ? move.parts : 1;
    }
    for (size_t k = first; k < last; ++k) at(word[k]).time = time_of(step_of(head(word[k])));
  }
  Memory used = first == 0 ? 0 : memory[first - 1];
  for (size_t k = first; k < last; ++k) {
    NodeInfo& info = at(word[k]);
    info.position = static_cast<int32_t>(k);
    memory[k] = used += use_of(info).change;
  }
}

void LocalSearch::make(const Move& move) {
  apply(move);
  moves_.push_back(move);
}

bool LocalSearch::try_swap(const Move& move) {
  if (!may_swap(move)) return false;
  make(move);
  return true;
}

// Shifts a step by `distance` steps, if it may.
bool LocalSearch::try_shift(Node node, int distance) {
  const NodeInfo& info = at(node);
  const std::vector<Node>& word = word_of(info);
  const auto parts_at = [&](int position) { return at(word[static_cast<size_t>(position)]).parts; };
  const auto size = static_cast<int>(word.size());
  int first = info.position, last = first + info.parts;
  const int middle = distance > 0 ? last : first;
  for (; distance > 0; --distance) {
    if (last == size) return false;
    last += parts_at(last);
  }
  for (; distance < 0; ++distance) {
    if (first == 0) return false;
    first -= parts_at(first - 1);
  }
  return try_swap({info.rank, first, middle, last});
}

// Takes the next letters into the step, or lets its last letters run alone.
void LocalSearch::resize(Node node, uint8_t parts) {
  const NodeInfo& info = at(node);
  make({info.rank, info.position, info.position, info.position + std::max(parts, info.parts), parts,
        info.parts});
}

// Makes a compound of an F or I alone and the nearest I or F alone within `distance` steps.
bool LocalSearch::try_join(Node node, int distance) {
  const NodeInfo& info = at(node);
  const std::vector<Node>& word = word_of(info);
  if (info.parts > 1 || pass_of(info.letter) == Pass::kWeight) return false;
  const Pass wanted = pass_of(info.letter) == Pass::kForward ? Pass::kInput : Pass::kForward;
  const int sign = distance > 0 ? 1 : -1, size = static_cast<int>(word.size());
  int steps = 0;
  for (int k = info.position + sign; k >= 0 && k < size; k += sign) {
    const Node other = word[static_cast<size_t>(k)];
    const NodeInfo& found = at(other);
    if (found.part > 0) continue;
    if (++steps > std::abs(distance)) return false;
    if (found.parts > 1 || pass_of(found.letter) != wanted) continue;
    // The partner comes here; F is first.
    if (steps > 1 && !try_shift(other, sign * (1 - steps))) return false;
    const Node forward = wanted == Pass::kInput ? node : other;
    const Node input = wanted == Pass::kInput ? other : node;
    if (at(input).before == forward) return false;
    if (at(forward).position > at(input).position && !try_shift(forward, -1)) return false;
    resize(forward, 2);
    return true;
  }
  return false;
}

// Takes W of the microbatch of the compound's I into the compound.
bool LocalSearch::try_add_weight(Node node) {
  const NodeInfo& info = at(node);
  const Node weight = step_of(node)[1] + static_cast<Node>(microbatches_);
  const int begin = info.position + 2, position = at(weight).position;
  if (begin < position && !try_swap({info.rank, begin, position, position + 1})) return false;
  resize(node, 3);
  return true;
}

bool LocalSearch::change_compound(Node node) {
  const int parts = at(node).parts;
  if (parts == 1) {
    const int reach = random_.one_in(2) ? kJoinReach : -kJoinReach;
    if (!try_join(node, reach)) return false;
    return !problem_.splits_backward || random_.one_in(2) || try_add_weight(head(node));
  }
  if (parts == 3) {
    resize(node, 2);
    return true;
  }
  if (problem_.splits_backward && random_.one_in(2)) return try_add_weight(node);
  resize(node, 1);
  return random_.one_in(2) || try_shift(node, 1);
}

bool LocalSearch::fits() const {
  for (const Move& move : moves_) {
    const std::vector<Node>& word = words_[static_cast<size_t>(move.rank)];
    const std::vector<Memory>& memory = memory_[static_cast<size_t>(move.rank)];
    const Memory limit = problem_.memory_limit(move.rank);
    for (auto k = static_cast<size_t>(move.first); k < static_cast<size_t>(move.last); ++k) {
      if (memory[k] > limit - use_of(at(word[k])).temporary) return false;
    }
  }
  return true;
}

// Starts at a step of the critical path or at any step, and mostly moves it by one place. False if
// the order or the memory forbids the move; the caller undoes what was done of it.
bool LocalSearch::make_random_moves() {
  moves_.clear();
  changes_.clear();
  Node node;
  if (random_.below(4) != 0) {
    node = path_[random_.index(path_.size())];
  } else {
    const std::vector<Node>& word = words_[random_.index(words_.size())];
    node = word[random_.index(word.size())];
  }
  node = head(node);
  if (problem_.overlap > 0 && random_.one_in(3)) return change_compound(node) && fits();
  int distance = random_.below(10) < 6 ? 1 : random_.between(1, 6);
  if (random_.one_in(2)) distance = -distance;
  const NodeInfo& info = at(node);
  const std::vector<Node>& word = word_of(info);
  const int kind = random_.below(20);
  if (kind < 12) return try_shift(node, distance) && fits();
  if (kind < 15) {
    // The following instances of the letter too.
    const int instance = node - static_cast<Node>(info.letter * microbatches_);
    const int count = std::min(random_.between(2, 8), problem_.runs_per_instance() - instance);
    for (int k = 0; k < count && try_shift(head(node + k), distance);) ++k;
    return !moves_.empty() && fits();
  }
  const int position = info.position, size = static_cast<int>(word.size());
  if (kind < 18) {
    // Two steps change places.
    const int other = position + distance;
    if (other < 0 || other >= size) return false;
    const Node second = head(word[static_cast<size_t>(other)]);
    return try_shift(node, distance) &&
           (std::abs(distance) == 1 ||
            try_shift(second, distance > 0 ? 1 - distance : -1 - distance)) &&
           fits();
  }
  // A block of steps, the one that moves first in front.
  const int count = random_.between(2, 4), first = distance > 0 ? position - count + 1 : position;
  if (first < 0 || first + count > size) return false;
  block_.clear();
  for (int k = first; k < first + count; ++k) {
    const Node one = word[static_cast<size_t>(k)];
    if (at(one).part == 0) block_.push_back(one);
  }
  if (distance > 0) std::ranges::reverse(block_);
  return std::ranges::all_of(block_, [&](Node one) { return try_shift(one, distance); }) && fits();
}

}  // namespace pipewright::schedule::search
