// The state is one word of nodes per rank and the end of every node. Moves change the words; the
// rest says what that costs, and what is kept.
//
// After a move, times are corrected by label correction: nodes whose predecessors changed are taken
// from a heap, earliest start first, and computed again; if the end changes, the next node of the
// rank and the node that waits for it follow. Most moves end after a few nodes, because slack
// absorbs the change. Each node has a latest end, beyond which the cost would rise too far; the
// move is given up once a node ends later. That also ends moves that deadlock, since times grow
// with every round of the cycle; or once it has changed very many, because where transfers take
// much longer than actions, times may grow slowly. The latest ends are those of an earlier state,
// refreshed now and then: a wrong rejection only loses a move, and accepted costs are always exact.
//
// The score that annealing minimises is the cost plus the mean span: without the second part most
// moves change nothing, and the search stalls.
#include "pipewright/schedule/search/local_search.h"

#include <algorithm>
#include <cstdlib>
#include <functional>

#include "pipewright/ir/check.h"
#include "pipewright/schedule/problem/problem.h"

namespace pipewright::schedule::search {
namespace {

constexpr int kEvaluationsPerMove = 6;  // what a move costs beside the nodes it computes
constexpr int kRefreshMoves = 2000;     // between two refreshes of the latest ends
constexpr int kPathChanges = 8;         // accepted moves between two critical paths
constexpr size_t kMostChanges = 4;      // of one move, per node

// -ln((n + 1/2) / 1024) in 1/1024, without the C library, whose results differ between machines.
Ticks exponential_quantile(int n) {
  // ln x = 2 artanh((x - 1) / (x + 1)), after halving x into [1/2, 1].
  double x = (n + 0.5) / 1024;
  int halvings = 0;
  for (; x < 0.5; x *= 2) ++halvings;
  const double z = (1 - x) / (1 + x);
  double sum = 0, power = z;
  for (int k = 1; k < 60; k += 2, power *= z * z) sum += power / k;
  return static_cast<Ticks>(1024 * (2 * sum + halvings * 0.6931471805599453));
}

}  // namespace

LocalSearch::LocalSearch(const Problem& problem, uint64_t seed)
    : problem_(problem),
      random_(seed),
      microbatches_(static_cast<size_t>(problem.num_microbatches)) {
  const std::vector<LetterInfo> letters = letters_of(problem);
  nodes_.resize(letters.size() * microbatches_);
  ends_.resize(nodes_.size());
  latest_.resize(nodes_.size());
  const auto node = [&](int letter, size_t instance) {
    return static_cast<Node>(static_cast<size_t>(letter) * microbatches_ + instance);
  };
  for (size_t one = 0; one < letters.size(); ++one) {
    const LetterInfo& info = letters[one];
    memory_change_.push_back(info.memory);
    temporary_.push_back(info.temporary);
    const auto rank_of = [&](int other) { return letters[static_cast<size_t>(other)].rank; };
    const bool is_unused =
        !problem.splits_backward && pass_of(static_cast<Letter>(one)) == Pass::kWeight;
    for (size_t instance = 0; instance < microbatches_; ++instance) {
      const bool near = info.need >= 0 && rank_of(info.need) == info.rank;
      const bool sends = info.unlocks >= 0 && rank_of(info.unlocks) != info.rank;
      NodeInfo& one_node = nodes_[one * microbatches_ + instance];
      one_node = {.letter = static_cast<Letter>(one),
                  .time = problem.scaled(info.time, static_cast<int>(instance)),
                  .delay = info.delay,
                  .need = info.need >= 0 && !near ? node(info.need, instance) : kNone,
                  .unlocks = sends ? node(info.unlocks, instance) : kNone,
                  .before = near ? node(info.need, instance) : kNone,
                  .rank = info.rank,
                  .position = -1};
      if (!is_unused) work_ += one_node.time;
    }
  }
  for (int n = 0; n < 1024; ++n) exponential_.push_back(exponential_quantile(n));
}

Ticks LocalSearch::ready(Node node) const {
  const NodeInfo& info = at(node);
  Ticks time = 0;
  if (info.position > 0)
    time = end(words_[static_cast<size_t>(info.rank)][static_cast<size_t>(info.position - 1)]);
  if (info.need != kNone) time = std::max(time, end(info.need) + info.delay);
  return time;
}

void LocalSearch::start(const Words& words) {
  words_.assign(words.size(), {});
  memory_.assign(words.size(), {});
  std::vector<int> instances(memory_change_.size());
  for (size_t rank = 0; rank < words.size(); ++rank) {
    Memory used = 0;
    for (const Letter one : words[rank]) {
      const auto node = static_cast<Node>(one * microbatches_) + instances[one]++;
      at(node).position = static_cast<int32_t>(words_[rank].size());
      words_[rank].push_back(node);
      memory_[rank].push_back(used += memory_change_[one]);
    }
  }
  replay();
  evaluations_ = static_cast<int64_t>(order_.size());
  best_ = words_;
  best_cost_ = cost_;
}

// Computes all ends, and an order in which the nodes can run.
void LocalSearch::replay() {
  order_.clear();
  std::ranges::fill(ends_, -1);
  std::vector<size_t> next(words_.size());
  std::vector<int> queue;
  std::vector<bool> is_queued(words_.size(), true);
  size_t total = 0;
  for (size_t rank = words_.size(); rank-- > 0;) {
    queue.push_back(static_cast<int>(rank));
    total += words_[rank].size();
  }
  while (!queue.empty()) {
    const auto rank = static_cast<size_t>(queue.back());
    queue.pop_back();
    is_queued[rank] = false;
    for (; next[rank] < words_[rank].size(); ++next[rank]) {
      const Node node = words_[rank][next[rank]];
      if (at(node).need != kNone && end(at(node).need) < 0) break;
      ends_[static_cast<size_t>(node)] = ready(node) + at(node).time;
      order_.push_back(node);
      if (at(node).unlocks == kNone) continue;
      const int other = at(at(node).unlocks).rank;
      if (is_queued[static_cast<size_t>(other)]) continue;
      is_queued[static_cast<size_t>(other)] = true;
      queue.push_back(other);
    }
  }
  PW_CHECK(order_.size() == total, "the words run to their end");
  measure();
}

void LocalSearch::measure() {
  cost_ = sum_of_spans_ = 0;
  for (size_t rank = 0; rank < words_.size(); ++rank) {
    const std::vector<Node>& word = words_[rank];
    if (word.empty()) continue;
    const Ticks span = end(word.back()) - start_of(word.front());
    sum_of_spans_ += span;
    if (span <= cost_) continue;
    cost_ = span;
    longest_rank_ = static_cast<int>(rank);
  }
}

// Needs the order_ of the current words.
void LocalSearch::find_latest() {
  reference_cost_ = cost_;
  for (auto node = order_.rbegin(); node != order_.rend(); ++node) {
    const NodeInfo& info = at(*node);
    const std::vector<Node>& word = words_[static_cast<size_t>(info.rank)];
    const auto next = static_cast<size_t>(info.position) + 1;
    Ticks latest = next < word.size() ? this->latest(word[next]) - at(word[next]).time
                                      : cost_ + start_of(word.front());
    if (info.unlocks != kNone) {
      const NodeInfo& other = at(info.unlocks);
      latest = std::min(latest, this->latest(info.unlocks) - other.time - other.delay);
    }
    latest_[static_cast<size_t>(*node)] = latest;
  }
}

// From the end of the longest rank back to the first action that waits for nothing.
void LocalSearch::find_critical_path() {
  path_.clear();
  Node node = words_[static_cast<size_t>(longest_rank_)].back();
  while (node != kNone) {
    path_.push_back(node);
    const NodeInfo& info = at(node);
    const Node previous =
        info.position == 0
            ? kNone
            : words_[static_cast<size_t>(info.rank)][static_cast<size_t>(info.position) - 1];
    node = previous != kNone && end(previous) == start_of(node) ? previous : info.need;
  }
}

int64_t LocalSearch::score() const {
  return static_cast<int64_t>(words_.size()) * cost_ + sum_of_spans_;
}

void LocalSearch::push(Node node) {
  const Ticks start = ready(node);
  if (start == start_of(node)) return;
  heap_.push_back({start, node});
  std::ranges::push_heap(heap_, std::greater<>(), &Pending::start);
}

bool LocalSearch::propagate(Ticks slack) {
  heap_.clear();
  for (const Shift& move : shifts_) {
    const std::vector<Node>& word = words_[static_cast<size_t>(move.rank)];
    const auto first = static_cast<size_t>(std::min(move.from, move.to));
    const size_t last =
        std::min(static_cast<size_t>(std::max(move.from, move.to)) + 1, word.size() - 1);
    for (size_t k = first; k <= last; ++k) push(word[k]);
  }
  while (!heap_.empty()) {
    std::ranges::pop_heap(heap_, std::greater<>(), &Pending::start);
    const Node node = heap_.back().node;
    heap_.pop_back();
    const NodeInfo& info = at(node);
    const Ticks now = ready(node) + info.time;
    Ticks& end = ends_[static_cast<size_t>(node)];
    if (now == end) continue;
    if (now > latest(node) + slack || changes_.size() >= kMostChanges * nodes_.size()) return false;
    changes_.emplace_back(node, end);
    end = now;
    const std::vector<Node>& word = words_[static_cast<size_t>(info.rank)];
    const auto next = static_cast<size_t>(info.position) + 1;
    if (next < word.size()) push(word[next]);
    if (info.unlocks != kNone) push(info.unlocks);
  }
  return true;
}

void LocalSearch::undo() {
  for (auto change = changes_.rbegin(); change != changes_.rend(); ++change)
    ends_[static_cast<size_t>(change->first)] = change->second;
  for (auto move = shifts_.rbegin(); move != shifts_.rend(); ++move)
    apply({move->rank, move->to, move->from});
}

void LocalSearch::refresh() {
  replay();
  find_latest();
  find_critical_path();
  evaluations_ += static_cast<int64_t>(order_.size());
}

void LocalSearch::anneal(const Annealing& annealing) {
  const int64_t begin = evaluations_;
  const auto weight = static_cast<int64_t>(words_.size());
  int moves = 0, changes = 0;
  refresh();
  while (best_cost_ > annealing.bound) {
    const int64_t used = evaluations_ - begin;
    if (used >= annealing.evaluations) return;
    if (is_cancelled(annealing.cancel)) return;
    if (++moves == kRefreshMoves) {
      refresh();
      moves = 0;
    }
    evaluations_ += kEvaluationsPerMove;
    if (!make_random_shifts()) {
      undo();
      continue;
    }
    const double left = 1 - static_cast<double>(used) / static_cast<double>(annealing.evaluations);
    const auto temperature = static_cast<int64_t>(1024 * annealing.temperature * left * left);
    const int64_t most = score() + weight * temperature / 1024 *
                                       exponential_[random_.index(exponential_.size())] / 1024;
    const Ticks cost = cost_, sum_of_spans = sum_of_spans_;
    const int longest_rank = longest_rank_;
    const bool runs = propagate((most - work_) / weight - reference_cost_);
    evaluations_ += static_cast<int64_t>(changes_.size());
    if (runs) measure();
    if (!runs || score() > most) {
      undo();
      cost_ = cost;
      sum_of_spans_ = sum_of_spans;
      longest_rank_ = longest_rank;
      continue;
    }
    if (cost_ < best_cost_) {
      best_cost_ = cost_;
      best_ = words_;
    }
    if (!changes_.empty() && ++changes == kPathChanges) {
      find_critical_path();
      changes = 0;
    }
  }
}

Words LocalSearch::best() const {
  Words words;
  for (const std::vector<Node>& nodes : best_) {
    Word& word = words.emplace_back();
    for (const Node node : nodes) word.push_back(at(node).letter);
  }
  return words;
}

bool LocalSearch::is_consistent() {
  const std::vector<Ticks> ends = ends_;
  const std::vector<std::vector<Memory>> memory = memory_;
  const Ticks cost = cost_, sum = sum_of_spans_;
  replay();
  for (size_t rank = 0; rank < words_.size(); ++rank) {
    Memory used = 0;
    for (size_t k = 0; k < words_[rank].size(); ++k) {
      const Letter letter = at(words_[rank][k]).letter;
      used += memory_change_[letter];
      if (used != memory[rank][k] ||
          used + temporary_[letter] > problem_.memory_limit(static_cast<int>(rank)))
        return false;
    }
  }
  return ends == ends_ && cost == cost_ && sum == sum_of_spans_;
}

// The moves of the local search. One takes a node out of its word and puts it back a few places
// away. It may not pass another instance of its letter or a node of its rank that it depends on, so
// both stay in order.
//
// A move is one to a few such shifts: of one node, of the same letter in consecutive microbatches,
// of two nodes that change places, or of a block. Memory is checked after all of them.

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
